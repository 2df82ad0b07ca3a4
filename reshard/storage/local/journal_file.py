"""The file of a transaction's records: checked lines, the first of which says whose they are.

::

    {"format": "reshard.journal", "version": 2, "identity": {…}, "host": "…", "boot": "…", "root": 4711}
    a record
    …

Nothing is synced: while the host runs, what was written before a line is in its memory or on the device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from reshard.errors import ResumeError
from reshard.storage.checked_lines import LineFile, read_lines

FORMAT = "reshard.journal"
VERSION = 2


class JournalHeader(Struct, frozen=True):
    """Whose journal it is.

    Attributes:
        identity: of the run.
        host, boot: where its lines were written, and in which run of that kernel.
        root: inode of the folder or file that becomes the target.
    """

    identity: Mapping[str, Any]
    host: str
    boot: str
    root: int


def new_journal(path: Path, header: JournalHeader) -> LineFile:
    """A new file with its first line, open for appending."""
    lines = LineFile(path)
    document = {"format": FORMAT, "version": VERSION, **to_builtins(header)}
    try:
        lines.append(json.dumps(document, sort_keys=True))
    except BaseException:
        lines.close()
        raise
    return lines


def read_journal_header(path: Path) -> JournalHeader | None:
    """The header of the journal at ``path``; None where there is none that can be read.

    Raises ResumeError where another version of this program wrote it: that version can resume it.
    """
    for line in read_lines(path):
        try:
            document = json.loads(line)
            if document.pop("format") != FORMAT:
                return None
            _check_version(document.pop("version"), path)
            return _checked(**document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
    return None


def read_records(path: Path) -> Iterator[bytes]:
    """The lines after the header, up to the first that is damaged."""
    lines = read_lines(path)
    next(lines, None)
    return lines


def _check_version(version: Any, path: Path) -> None:
    if version != VERSION:
        raise ResumeError(
            f"an unfinished run was recorded by another version of reshard: {str(path)!r} has version {version!r}, "
            f"expected {VERSION}; resume with that version, or start over (restart)"
        )


def _checked(identity: dict[str, Any], host: str, boot: str, root: int) -> JournalHeader:
    if type(root) is not int or type(identity) is not dict:
        raise TypeError("a field of the wrong kind")
    if not all(isinstance(text, str) for text in (host, boot)):
        raise TypeError("a field of the wrong kind")
    return JournalHeader(identity, host, boot, root)
