"""The lab: command line, training loop, recipes, run directories, report page and reproduction of the paper."""
