"""Restores checkpoints as live trees: numpy arrays, jax arrays on any mesh, ShardedVariables."""
