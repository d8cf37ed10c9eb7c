"""What each test process needs, imported once before it is forked."""

import torch.distributed.fsdp  # noqa: F401

import partialsgd.distributed.subnet_worker
import partialsgd.engine.partial_sgd
import partialsgd.methods
import partialsgd.nested  # noqa: F401
