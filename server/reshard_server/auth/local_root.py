"""A storage root that is a local folder; and the form of a client's path, below any root.

Links that stay beneath their root are followed. A link that leads out, and an absolute link, is answered as if it did not
exist. A user of the host who may write to a root can change a link in between: roots are for people who trust each
other's files.

A client's path is ``ROOT/path``: the name of a storage root, and plain names below it between single slashes. It is
taken literally; nothing decodes or expands it. URLs are no paths.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from reshard import ReshardError
from reshard.formats.known_formats import files_of
from reshard.formats.registry import is_there
from reshard.storage.location import Location, locate
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError

_SYSCALL = 437
"""The number of the system call, on all of Python's architectures except Alpha."""

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_TRIES = 16
"""The kernel returns EAGAIN if a folder was renamed meanwhile."""


def is_supported() -> bool:
    """True if this kernel has ``openat2`` (Linux 5.6) and allows it; some sandboxes do not."""
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


T = TypeVar("T")

MOST_LINKS = 40

Lookup = Callable[[str, tuple[str, ...]], Path]
"""Resolves names below a real folder to the real path; OSError if a link leads out, or nothing exists."""


@dataclass(frozen=True)
class LocalRoot:
    """A root on a local disk; implements ``root_paths.Root``.

    Attributes:
        folder: as the settings name it; it may itself be a link.
        lookup: follows links; by the kernel if it can.
    """

    folder: Location
    lookup: Lookup

    @property
    def place(self) -> Location:
        return locate(os.path.realpath(self.folder.path))

    def resolve(self, text: str, names: tuple[str, ...], *, target: bool) -> Location:
        base = self.place.path
        followed, kept = (names[:-1], names[-1:]) if target else (names, ())
        try:
            path = Path(self._resolved(base, followed), *kept)
        except FileNotFoundError as error:  # the root's folder is gone
            raise nothing(text) from error
        except OSError as error:
            raise missing(text) from error
        if not target:
            _check_snapshot(text, path, base)
        return locate(path)

    def has(self, place: Location) -> bool:
        return os.path.lexists(place.path) or _is_prefix(place)

    def ask(self, call: Callable[[], T], seconds: float = 0) -> T:  # noqa: ARG002  of the interface
        """Calls it: the system's own limits apply to local disks."""
        return call()

    def _resolved(self, base: str, names: tuple[str, ...]) -> Path:
        """The real path of the existing part, followed by the missing names."""
        for present in range(len(names), -1, -1):
            try:
                real = self.lookup(base, names[:present])
            except FileNotFoundError:
                continue
            path = Path(real, *names[present:])
            if present < len(names) and os.path.lexists(real / names[present]):
                raise OSError(errno.ELOOP, "a link leads to nothing", str(path))
            return path
        raise FileNotFoundError(errno.ENOENT, "the root's folder is missing", base)


def _is_prefix(place: Location) -> bool:
    """True if this name is only the prefix of a checkpoint's files."""
    with suppress(ReshardError):  # the folder cannot be looked at
        return is_there(place)
    return False


def _check_snapshot(text: str, path: Path, base: str) -> None:
    """Raises ProblemError for a snapshot of huggingface_hub's cache whose links lead out of the root.

    The library refuses links that lead out of a checkpoint, except for these: it follows links of
    ``models--…/snapshots/REVISION`` to ``models--…/blobs``. They lead out of a root that is inside the repository. The files of
    a prefix are in the folder above it.
    """
    if path.parent.parent.name == "snapshots" and _stands_for_files(path):
        path = path.parent
    if path.parent.name != "snapshots" or _is_beneath(str(path.parent.parent), base):
        return
    try:
        with os.scandir(path) as entries:
            links = sorted(entry.name for entry in entries if entry.is_symlink())
    except OSError:  # opening the checkpoint says why
        return
    for link in links:
        if not _is_beneath(os.path.realpath(path / link), base):
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} holds the link {link!r}, which leads out of its storage root and is not followed; "
                "make a folder above the links' files a storage root, or copy the files into this one",
            )


def _stands_for_files(path: Path) -> bool:
    with suppress(ReshardError):  # opening the checkpoint says why
        return files_of(locate(path)) is not None
    return False


def best_lookup() -> Lookup:
    """The kernel's lookup if it has one, else our own."""
    return lookup_by_kernel if is_supported() else lookup_by_walk


def lookup_by_kernel(base: str, names: tuple[str, ...]) -> Path:
    """Uses ``openat2``: the kernel refuses links that lead out while it resolves the path."""
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor = open_beneath(folder, "/".join(names) or ".")
    finally:
        os.close(folder)
    try:
        path = os.path.realpath(os.path.join(base, *names))  # noqa: PTH118 - names are no paths
        if not _is_beneath(path, base) or not os.path.samestat(
            Path(path).stat(), os.fstat(descriptor)
        ):
            raise OSError(errno.EXDEV, "the path changed while it was looked up", path)
    finally:
        os.close(descriptor)
    return Path(path)


def lookup_by_walk(base: str, names: tuple[str, ...]) -> Path:
    """Resolves name by name, for kernels without ``openat2``; equivalent unless links change meanwhile."""
    os.stat(f"{base}/")  # noqa: PTH116 - raises if the root is not a folder
    at, ahead, links = [base], list(reversed(names)), 0
    while ahead:
        name = ahead.pop()
        path = f"{'/'.join(at)}/{name}"
        if not stat.S_ISLNK(os.lstat(path).st_mode):
            _step(at, name)
            continue
        links += 1
        leads = os.readlink(path)  # noqa: PTH115 - a Path would lose a slash at the end
        if leads.startswith("/") or links > MOST_LINKS:
            raise OSError(errno.EXDEV, "a link leads out of its root, or in a circle", path)
        ahead += reversed(leads.split("/"))
    return Path("/".join(at))


def _step(at: list[str], name: str) -> None:
    """Follows one name, of the path or of a link."""
    if name == "..":
        at.pop()
    elif name not in ("", "."):
        at.append(name)
    if not at:
        raise OSError(errno.EXDEV, "it leads out of its root", name)


def _is_beneath(path: str, base: str) -> bool:
    return path == base or path.startswith(base.rstrip("/") + "/")


LINKS_FOLDER = ".reshard-held"
"""The folder in a root with hard links to steps that a training run may delete."""

REMOVED_PREFIX = ".reshard-removed-"
"""Prefix of outputs that are being removed."""

STAGING_SUFFIX = ".reshard-partial"
"""Suffix of the hidden folder in which the library writes a target until it is complete."""


def reserved(names: Iterable[str]) -> str | None:
    """The reason why a path with these names is reserved; None if it is not."""
    for name in names:
        if name.startswith(".") and name.endswith(STAGING_SUFFIX):
            return "has the name of a folder for unfinished output (.NAME.reshard-partial)"
        if name == LINKS_FOLDER:
            return "is in the folder for hard links to sources (.reshard-held)"
        if name.startswith(REMOVED_PREFIX):
            return "is in a folder that the server is removing (.reshard-removed-…)"
    return None


REFUSED_CHARACTERS = frozenset("%|?#;\\")
"""Characters with a special meaning for TensorStore, URLs or shells."""

REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters such as NUL, halves of surrogate pairs, and Unicode line ends."""

LONGEST_PATH = 4096
LONGEST_NAME = 255
"""In bytes; Linux's limits."""

_ROOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parts(text: str) -> tuple[str, tuple[str, ...]]:
    """The root's name and the names below it; ProblemError if the text is not a valid path."""
    root, *names = text.split("/")
    why = _wrong(text, root, names)
    if why is not None:
        raise ProblemError(
            INVALID,
            f"{text[:200]!r} is not a path below a storage root: {why}; give ROOT/path, with plain names between single "
            "slashes",
        )
    return root, tuple(names)


def may_be_named(name: str) -> bool:
    """True if a name below a root can be part of a client's path."""
    return "/" not in name and _wrong(name, "root", [name]) is None


def _wrong(text: str, root: str, names: list[str]) -> str | None:
    """The reason why a text is not a path; None if it is."""
    for character in text:
        if character in REFUSED_CHARACTERS or unicodedata.category(character) in REFUSED_CATEGORIES:
            return f"it has the character {character!a}"
    if len(text.encode()) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes"
    if not names or root == "":
        return "it has no root's name before a slash"
    if not _ROOT_NAME.fullmatch(root):
        return f"{root[:100]!r} is not the name of a root"
    return next(filter(None, map(_wrong_name, names)), None)


def _wrong_name(name: str) -> str | None:
    if name == "":
        return "it has an empty name"
    if name in (".", ".."):
        return "it has a name of dots"
    too_long = len(name.encode()) > LONGEST_NAME
    return f"it has a name longer than {LONGEST_NAME} bytes" if too_long else None


def missing(text: str) -> ProblemError:
    """The problem if nothing exists at a path of an allowed root, or a link leads out of the root."""
    return ProblemError(NOT_FOUND, f"there is nothing at {text[:200]!r}; check the path")


def nothing(text: str) -> ProblemError:
    """The problem if the root does not exist, or the caller may not use it."""
    return ProblemError(
        NOT_FOUND,
        f"there is nothing at {text[:200]!r} that this token may use; check root and path",
    )
