"""Everything that has to be known about a torch optimizer to mask its step exactly."""
