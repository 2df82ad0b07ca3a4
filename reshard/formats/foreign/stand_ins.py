"""Files that stand where another file should be: Git LFS pointers, and web pages that were saved in place of a download."""

from __future__ import annotations

from reshard.errors import FormatError

START_BYTES = 64
"""The first bytes of a file that ``refuse_stand_in`` looks at."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html", b"<?xml")


def refuse_stand_in(start: bytes, file: str) -> None:
    """Raises FormatError where a file that begins with ``start`` is none of a checkpoint, but stands in for one.

    ``file`` names it in the message.
    """
    start = start[:START_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_POINTER):
        raise FormatError(
            f"{file} is a Git LFS pointer, a small text in place of the file: it was cloned without git-lfs; run 'git lfs install' "
            "and 'git lfs pull' in the clone, or download the file itself"
        )
    if start.startswith(_PAGE):
        raise FormatError(
            f"{file} is a web page (HTML or XML) in place of the file, such as a login page or an error of the server; download "
            "the file again, with access to it"
        )
