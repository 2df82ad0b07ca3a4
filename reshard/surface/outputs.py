"""Removing a finished output, under the lease of its target."""

from __future__ import annotations

from reshard.storage.buckets.objects import delete
from reshard.storage.buckets.store import BucketStore
from reshard.storage.local.prefix_files import remove_files
from reshard.storage.local.staging import FILES_OF_PREFIX
from reshard.storage.targets import held_target

__all__ = ["FILES_OF_PREFIX", "BucketStore", "delete", "held_target", "remove_files"]
