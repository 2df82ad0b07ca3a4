"""Runs whose requests do not depend on how fast the machine is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def no_clock() -> Iterator[None]:
    """Nothing is put into a bucket, or asked of it, because time has passed: a slow machine would make more requests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("segments.FLUSH_S", "lease.BEAT_S", "lease.SURE_S"):
            patch.setattr(f"reshard.storage.buckets.{name}", 1e9)
        yield
