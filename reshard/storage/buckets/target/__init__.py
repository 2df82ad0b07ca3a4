"""Targets in buckets: the lease by which one run writes, its records, the marks, and what earlier runs left."""
