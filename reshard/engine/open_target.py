"""OpenTarget: where the tasks of one target write."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

Put = Callable[[str, "tuple[int, ...]", "bytes | memoryview"], None]
"""Stores a whole chunk: tensor, index, and the encoded bytes."""


class OpenTarget(Struct, frozen=True):
    """Where tasks write.

    Attributes:
        root: the folder below which target files lie.
        put: stores whole chunks where the target is no plain files.
        target: named in errors, where a run has several; None where it has one.
    """

    root: str
    put: Put | None = None
    target: str | None = None
