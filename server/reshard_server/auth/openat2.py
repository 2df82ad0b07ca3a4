"""openat2: the kernel itself looks a path up, and no link leads it out of the folder where it begins."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache

_SYSCALL = 437
"""The same on every architecture that Python runs on but Alpha."""

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_TRIES = 16
"""The kernel gives up where a folder was renamed meanwhile, and asks to be asked again."""


def is_there() -> bool:
    """Whether this kernel has it, and lets this process use it (Linux 5.6; some sandboxes do not)."""
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(open_beneath(folder, "."))
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def open_beneath(folder: int, path: str) -> int:
    """A descriptor (``O_PATH``) of what lies at a path beneath an open folder.

    Links are followed where they stay beneath it. Raises OSError: ``EXDEV`` where something leads out.
    """
    how = struct.pack(
        "=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
    )
    name = os.fsencode(path)
    for _ in range(_TRIES):
        found: int = _libc().syscall(_SYSCALL, folder, name, how, len(how))
        number = ctypes.get_errno()
        if found >= 0:
            return found
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
