"""A spool gives back the payloads that threads appended, and leaves nothing in its folder."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reshard.errors import StorageError
from reshard.storage.local.spool import Spool, Spooled


def fill(spool: Spool) -> None:
    first, second = Spooled([]), Spooled([])
    for payload, data in ((first, b"ab"), (second, b"1"), (first, b""), (first, b"c"), (first, b"d")):  # fmt: skip
        spool.append(payload, data)
    assert first.parts == [(0, 2), (3, 2)]
    assert (b"".join(spool.read(first)), b"".join(spool.read(second))) == (b"abcd", b"1")
    assert (first.nbytes, second.nbytes) == (4, 1)


def test_payloads_come_back(tmp_path: Path) -> None:
    with closing(Spool(str(tmp_path))) as spool:
        assert list(tmp_path.iterdir()) == []
        fill(spool)


def test_a_file_system_without_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    with closing(Spool(str(tmp_path))) as spool:
        assert list(tmp_path.iterdir()) == []
        fill(spool)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot make a temporary file in .*gone"):
        Spool(str(tmp_path / "gone"))
