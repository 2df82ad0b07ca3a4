"""The checkpoints and worlds of the jobs' tests."""

from tests.server.jobs.conftest import (
    saved,
    shared_world,
    slow_source,
    small_source,
    small_world,
    world,
)

__all__ = ["saved", "shared_world", "slow_source", "small_source", "small_world", "world"]
