"""Records of uses: made, kept in a JSON file, and compared."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.emulators.no_clock import no_clock
from tests.recorded.ways import Recorded, Use, new_world

MAX_LINES = 6
"""Shown of each difference."""

Record = dict[str, Recorded]


def record(uses: Mapping[str, Use]) -> Record:
    """The output and the files of each use by its name, or the error that ends it."""
    found: Record = {}
    with no_clock(), new_world() as world:
        for name, carry_out in uses.items():
            try:
                found[name] = carry_out(world)
            except Exception as error:  # noqa: BLE001  the others are recorded all the same
                text = f"{type(error).__name__}: {error}".replace(str(world.folder), ".")
                found[name] = {"failed": text.splitlines()}
    return found


def write(file: Path, found: Record) -> None:
    """Sorted, a line for each file and each line of text."""
    file.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def read(file: Path) -> Record:
    """The record that ``write`` wrote."""
    found: Record = json.loads(file.read_text("utf-8"))
    return found


def differences(before: Record, after: Record) -> Iterator[str]:
    """Each difference in a few lines: use and what, then lines before (``-``) and after (``+``)."""
    flat = [
        {(name, what): v for name, of in r.items() for what, v in of.items()}
        for r in (before, after)
    ]
    for name, what in sorted(flat[0].keys() | flat[1].keys()):
        old, new = (one.get((name, what)) for one in flat)
        if old != new:
            yield f"{name}: {what}"
            changed = _changed_lines(_lines(old), _lines(new))
            yield from (f"  {line}" for line in changed[:MAX_LINES])
            if len(changed) > MAX_LINES:
                yield f"  … {len(changed) - MAX_LINES} lines more"


def _changed_lines(old: list[str], new: list[str]) -> list[str]:
    diff = difflib.unified_diff(old, new, n=0, lineterm="")
    return [line for line in list(diff)[2:] if not line.startswith("@@")]


def _lines(value: Any, prefix: str = "") -> list[str]:
    """A recorded value as lines."""
    if isinstance(value, dict):
        return [line for key in sorted(value) for line in _lines(value[key], f"{prefix}{key}: ")]
    if isinstance(value, list):
        return [f"{prefix}{line}" for line in value]
    return [] if value is None else [f"{prefix}{value}"]
