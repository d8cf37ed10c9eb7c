"""Internal helpers: bitwise selection, snapshots of random state, hashed random numbers."""
