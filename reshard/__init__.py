"""Converts sharded checkpoints from one device mesh to another."""
