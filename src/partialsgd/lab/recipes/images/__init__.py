"""Pictures and their classes: a residual network of every size."""
