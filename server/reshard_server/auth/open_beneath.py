"""Opens a path beneath a folder by Linux's ``openat2``: the kernel refuses links that lead out of the folder."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache

_SYSCALL = 437
"""The number of the system call, on all of Python's architectures except Alpha."""

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_TRIES = 16
"""The kernel returns EAGAIN if a folder was renamed meanwhile."""


def is_supported() -> bool:
    """Whether this kernel has ``openat2`` (Linux 5.6) and allows it; some sandboxes do not."""
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(open_beneath(folder, "."))
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def open_beneath(folder: int, path: str) -> int:
    """A descriptor (``O_PATH``) of a path beneath an open folder.

    Follows links that stay beneath the folder. Raises OSError: ``EXDEV`` if a link leads out.
    """
    how = struct.pack(
        "=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
    )
    name = os.fsencode(path)
    for _ in range(_TRIES):
        descriptor: int = _libc().syscall(_SYSCALL, folder, name, how, len(how))
        number = ctypes.get_errno()
        if descriptor >= 0:
            return descriptor
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
