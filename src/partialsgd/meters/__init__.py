"""What can be measured of a step while training."""
