"""Measurements of this project beside its peers."""
