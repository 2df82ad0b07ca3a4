"""A refusal that leaves everything as it was, by the API and by the command line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.cli.options import as_options
from reshard.errors import (
    ReshardError,
)
from reshard.storage.local.staging import staging_for


def fingerprint(path: Path) -> str:
    """Digest of every name, kind and byte below a path."""
    found = hashlib.sha256()
    for entry in [path, *sorted(path.rglob("*"))] if os.path.lexists(path) else []:
        kind = "link" if entry.is_symlink() else "dir" if entry.is_dir() else "file"
        found.update(f"{entry.relative_to(path)}\0{kind}\0".encode())
        found.update(entry.read_bytes() if kind == "file" else b"")
    return found.hexdigest()


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if "reshard-partial" in p.name]


@contextmanager
def nothing_changes(*paths: Path) -> Iterator[None]:
    """What lies at the paths is the same afterwards, and no staging folder is beside them."""
    before = [fingerprint(p) for p in paths]
    yield
    assert [fingerprint(p) for p in paths] == before
    for path in paths:
        assert not os.path.lexists(staging_for(path).folder)


def refused(
    src: Path | str,
    dst: Path | str,
    error: type[ReshardError],
    *texts: str,
    **options: Any,
) -> ReshardError:
    """The conversion is refused by the API with these texts and leaves everything as it was."""
    with nothing_changes(Path(src), Path(dst)), pytest.raises(error) as caught:
        reshard.convert(src, dst, **options)
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def refused_by_command(
    capsys: pytest.CaptureFixture[str],
    src: Path | str,
    dst: Path | str,
    *texts: str,
    args: Any = (),
    code: int = 1,
) -> None:
    """The same of the command line, in its words: one message, no traceback; 2 for words that are wrong with any source."""
    with nothing_changes(Path(src), Path(dst)):
        assert run(["convert", str(src), str(dst), *map(str, args)]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err + printed.out
    assert "error: " in printed.err
    for text in texts:
        assert as_options(text) in printed.err


def converts(src: Path, dst: Path, **options: Any) -> None:
    """The conversion works, and every tensor is what it was."""
    reshard.convert(src, dst, **options)
    assert reshard.verify(src, dst).differences == 0
    assert leftovers(dst.parent) == []


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def do(path: Path) -> None:
        text = (path / name).read_text()
        assert old in text
        (path / name).write_text(text.replace(old, new))

    return do
