"""Networks, data and schedules of the experiments."""
