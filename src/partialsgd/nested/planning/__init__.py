"""Planning: which layers and hidden units a spec applies to, and what replaces them.

`build` fills a `NestPlan` for the specs of all levels. Where `Width` has to find hidden units, `dry_run` runs the model
under a `Trace`, which follows units through each operation (`operations`, `products`) and notes which entries of
weights belong together (`ties`); `hidden_units` makes groups of them (`groups`), and `proof` tries the cut.
"""
