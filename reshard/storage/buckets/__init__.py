"""Buckets of Google Cloud Storage, S3 and Azure as stores of files, through obstore."""
