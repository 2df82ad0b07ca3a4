"""Removing a finished output, under the lease of its target."""

from __future__ import annotations

from reshard.storage.buckets.objects import delete
from reshard.storage.buckets.store import BucketStore
from reshard.storage.targets import held_target

__all__ = ["BucketStore", "delete", "held_target"]
