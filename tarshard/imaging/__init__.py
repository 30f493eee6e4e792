"""Images as bytes: what kind, what size. Knows nothing of tars or datasets."""
