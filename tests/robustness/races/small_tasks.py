"""Conversions that meet others, or that something happens to; loads neither jax nor Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reshard

LAYOUT = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "big", "axes": [None, "x"]}]}
KEPT = ("reshard-partial",)
"""What may be left where a run did not end."""


ROWS = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": ["x"]}]}
COLUMNS = {**ROWS, "rules": [{"match": "w", "axes": [None, "x"]}]}
FORMS = [("none", ROWS), ("zstd", COLUMNS), ("none", COLUMNS), ("gzip", ROWS)]


def convert(source: str | Path, target: str | Path, **options: Any) -> Any:
    """A conversion in many small tasks, so that much is still to do."""
    return reshard.convert(
        source, target, layout=LAYOUT, chunk_bytes=16 << 10, workers=4, **options
    )


def convert_number(source: Path, target: Path, number: int) -> dict[str, str | None]:
    """Each in another form, so that threads leave other things behind in what they share."""
    compression, layout = FORMS[number % len(FORMS)]
    report = reshard.convert(
        source, target, layout=layout, compression=compression, workers=3, chunk_bytes=8 << 10
    )
    return {t.target: t.target_digest for t in report.tensors}


def in_process(source: Path, target: Path, number: int, queue: Any) -> None:
    """As ``convert_number``, for a process of its own; the queue gets how it ended."""
    try:
        convert_number(source, target, number)
        queue.put("done")
    except Exception as error:  # noqa: BLE001 - told to the test
        queue.put(f"{type(error).__name__}: {error}")
