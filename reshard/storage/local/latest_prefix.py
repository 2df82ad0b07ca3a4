"""The file ``checkpoint`` of a folder, with which TensorFlow finds the latest of the prefixes in it.

It is written if there is none, or if reshard wrote the existing one. Any other belongs to a training, which resumes from the
prefix that it names, and stays unchanged. It lists no other prefixes: a training that resumes here deletes the listed ones.
(``tensorflow/python/training/checkpoint_state.proto``)
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from reshard.storage.local.files import close_after_reading, storage_errors, write_file
from reshard.storage.local.staging import Staging
from reshard.storage.local.syncing import fsync

_NAME = "checkpoint"
_BEGINS = b"# Written by reshard: the newest checkpoint that it made in this folder.\n"


def name_latest(staging: Staging) -> None:
    """Makes the file name the target of several files, which must exist, unless the file belongs to a training.

    Raises StorageError if the system refuses it.
    """
    there, made = staging.target.parent / _NAME, staging.folder / "latest"
    begins = _beginning(there)
    if begins not in (None, _BEGINS):
        return
    write_file(
        str(made), _BEGINS + f'model_checkpoint_path: "{_quoted(staging.target)}"\n'.encode()
    )
    fsync(made)
    with storage_errors("write", there):
        if begins:
            made.replace(there)
        else:
            with suppress(FileExistsError):  # a training has begun here meanwhile
                there.hardlink_to(made)
            made.unlink()


def _beginning(there: Path) -> bytes | None:
    """The first bytes of the existing file, as many as identify its writer; None if there is none."""
    with storage_errors("read", there):
        try:
            fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return b"" if there.is_symlink() else None
        try:
            return os.read(fd, len(_BEGINS))
        except IsADirectoryError:
            return b""
        finally:
            close_after_reading(fd)


def _quoted(target: Path) -> str:
    """The name of a target as a string of a text proto."""
    octets = os.fsencode(target.name)
    plain = (0x20 <= octet < 0x7F and octet not in b'"\\' for octet in octets)
    return "".join(
        chr(octet) if is_plain else f"\\{octet:03o}"
        for octet, is_plain in zip(octets, plain, strict=True)
    )
