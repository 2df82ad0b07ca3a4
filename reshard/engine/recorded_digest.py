"""Compares the digest of what was read with the one that the checkpoint recorded."""

from __future__ import annotations

from reshard.errors import CorruptError
from reshard.formats.codecs.source import REMEDY


def check_recorded(name: str, found: str, recorded: str) -> None:
    """Raises CorruptError if the digest of a tensor's bytes, 16 hex digits, is not the recorded one."""
    if found != recorded:
        raise CorruptError(
            f"tensor {name!r}: its bytes have the digest {found}, but {recorded} was recorded when it was written; "
            f"{REMEDY}"
        )
