"""What a run reads of its source: which bytes, and how often."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.formats.registry import open_reader

FRAME_HEADERS_BYTES = 8 * 18
"""A zstd frame's header is checked before a decoder is made for it, and then decoded."""


def encoded_bytes(path: Path) -> int:
    """The stored bytes of the tensor ``w``, all chunks together."""
    reader = open_reader(str(path))
    extents = [reader.locate("w", i) for i in reader.tensors["w"].spec.storage.indices()]
    return sum(e.length for e in extents)


class Reads:
    """Every interval that is read of any file, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.intervals: dict[str, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()
        for name in ("pread", "preadv", "copy_file_range"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(fd: int, *args: Any) -> Any:
            result = call(fd, *args)
            count = result if isinstance(result, int) else len(result)
            offset = args[2] if name == "copy_file_range" else args[1]
            with self._lock:
                path = str(Path(f"/proc/self/fd/{fd}").readlink())
                self.intervals.setdefault(path, []).append((offset, offset + count))
            return result

        return recorded

    def times_read(self, path: str, start: int, stop: int) -> Counter[int]:
        """How many bytes of ``start:stop`` were read how often."""
        steps = Counter({start: 0, stop: 0})
        for a, b in self.intervals.get(path, []):
            a, b = max(a, start), min(b, stop)
            if a < b:
                steps[a] += 1
                steps[b] -= 1
        times: Counter[int] = Counter()
        depth = 0
        for (a, step), (b, _) in itertools.pairwise(sorted(steps.items())):
            depth += step
            times[depth] += b - a
        return times
