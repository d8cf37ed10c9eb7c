"""A trained network becomes a family: is one joint run as good as training each size on by itself, for the same cost?

    python -m studies.trained_start --data FOLDER    # trains what is missing; stopped or killed, the same call goes on
    python -m studies.write                          # the table in docs/which_size.md

A small language model of characters is trained. Then it is nested, and goes on in one of these ways: the core is cut
out and trained alone; the whole network is trained on; or both are trained jointly, with the FLOPs of the other two
together. The losses before any of this, of the core as it is cut out too, are stored beside them. Each way has its
learning rate chosen by validation loss out of the same rates, and the test data are looked at once, with that rate.
FOLDER has train.en, valid.en and test.en, plain or .gz, such as Multi30k; without --data the text is generated, which
is enough to see the study work.
"""
