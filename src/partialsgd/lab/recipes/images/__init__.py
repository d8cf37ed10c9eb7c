"""The images recipe: a residual network for image classification, at every size."""
