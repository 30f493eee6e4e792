"""Bytes by name; knows nothing of images, tars or datasets."""
