"""Paths below the storage roots: all rules about which paths a client may name.

A client's path is ``ROOT/path``: the name of a storage root, and plain names below it between single slashes. It is
taken literally; nothing decodes or expands it. Links that stay beneath their root are followed. A link that leads out,
an absolute link, and everything that the caller may not see is answered as if it did not exist.

The result is a real path without links. It is looked up again right before it is used (``recheck``), since links may
have changed while a conversion waited. A user of the host who may write to a root can still change a link in between:
roots are for people who trust each other's files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reshard import ReshardError, is_checkpoint
from reshard_server.auth import open_beneath
from reshard_server.auth.reserved_names import reserved
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError

REFUSED_CHARACTERS = frozenset("%|?#;\\")
"""Characters with a special meaning for TensorStore, URLs or shells."""

REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters such as NUL, halves of surrogate pairs, and Unicode line ends."""

LONGEST_PATH = 4096
LONGEST_NAME = 255
"""In bytes; Linux's limits."""

MOST_LINKS = 40

_ROOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Lookup = Callable[[str, tuple[str, ...]], Path]
"""Resolves names below a real folder to the real path; OSError if a link leads out, or nothing exists."""


@dataclass(frozen=True)
class Roots:
    """The storage roots of a server, by name.

    Attributes:
        lookup: follows links; by the kernel if it can.
    """

    roots: Mapping[str, Path]
    lookup: Lookup = field(default_factory=lambda: best_lookup())

    def readable(self, caller: Caller, text: str) -> Path:
        """The real path, which need not exist; ProblemError if the caller may not read it."""
        root, _ = parts(text)
        if not caller.may_read(root):
            raise nothing(text)
        return self.recheck(text)

    def existing(self, caller: Caller, text: str) -> Path:
        """The real path, which exists or is the prefix of a checkpoint's files; ProblemError if not, or if the caller may
        not read it."""
        path = self.readable(caller, text)
        if not os.path.lexists(path) and not _is_prefix(path):
            raise missing(text)
        return path

    def changeable(self, caller: Caller, text: str) -> Path:
        """The real path, which exists; ProblemError if the caller may not both read and change it."""
        path = self.existing(caller, text)
        root, names = parts(text)
        if not caller.may_write(root):
            raise nothing(text)
        self._check_reserved(text, root, names, path, "choose another checkpoint")
        return path

    def writable(self, caller: Caller, text: str) -> Path:
        """The real path of a target; ProblemError if the caller may not write it.

        Its parents may be missing. Its last name is not followed: if it is a link, the library refuses it when the
        target is written.
        """
        root, _ = parts(text)
        if not caller.may_write(root):
            raise nothing(text)
        return self.recheck(text, target=True)

    def folder(self, caller: Caller, root: str, prefix: str) -> Path:
        """The real path of a root, or of a folder below it, for listing."""
        if prefix:
            return self.existing(caller, f"{root}/{prefix}")
        if root not in self.roots or not caller.may_read(root):
            raise nothing(root)
        return Path(os.path.realpath(self.roots[root]))

    def recheck(self, text: str, *, target: bool = False) -> Path:
        """The real path for any caller, to be used right away.

        Args:
            target: like ``writable``: refuses folders of the server and the library.
        """
        root, names = parts(text)
        if root not in self.roots:
            raise nothing(text)
        base = os.path.realpath(self.roots[root])
        followed, kept = (names[:-1], names[-1:]) if target else (names, ())
        try:
            path = Path(self._resolved(base, followed), *kept)
        except FileNotFoundError as error:  # the root's folder is gone
            raise nothing(text) from error
        except OSError as error:
            raise missing(text) from error
        if target:
            self._check_reserved(text, root, names, path, "choose another target")
        else:
            _check_snapshot(text, path, base)
        return path

    def _check_reserved(
        self, text: str, root: str, names: tuple[str, ...], path: Path, remedy: str
    ) -> None:
        """Raises ProblemError if the path or its real path belongs to the server or the library."""
        below = path.relative_to(os.path.realpath(self.roots[root])).parts
        why = reserved((*names, *below))
        if why is not None:
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} {why}; {remedy}",
                remedy=remedy,
            )

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


def _is_prefix(path: Path) -> bool:
    """Whether the files of a checkpoint begin with this name, which nothing has itself."""
    try:
        return is_checkpoint(path)
    except ReshardError:  # the folder cannot be looked at
        return False


def _check_snapshot(text: str, path: Path, base: str) -> None:
    """Raises ProblemError for a snapshot of huggingface_hub's cache whose links lead out of the root.

    The library refuses links that lead out of a checkpoint, except for these: it follows links of
    ``models--…/snapshots/REVISION`` to ``models--…/blobs``. They lead out of a root that is inside the repository.
    """
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
                remedy="make a folder above the links' files a storage root, or copy the files into this one",
            )


def parts(text: str) -> tuple[str, tuple[str, ...]]:
    """The root's name and the names below it; ProblemError if the text is not a valid path."""
    root, *names = text.split("/")
    why = _wrong(text, root, names)
    if why is not None:
        raise ProblemError(
            INVALID,
            f"{text[:200]!r} is not a path below a storage root: {why}; give ROOT/path, with plain names between single "
            "slashes",
            remedy="give ROOT/path, with plain names between single slashes",
        )
    return root, tuple(names)


def may_be_named(name: str) -> bool:
    """Whether a name below a root can be part of a client's path."""
    return "/" not in name and _wrong(name, "root", [name]) is None


def _wrong(text: str, root: str, names: list[str]) -> str | None:
    for character in text:
        if character in REFUSED_CHARACTERS or unicodedata.category(character) in REFUSED_CATEGORIES:
            return f"it has the character {character!a}"
    if len(text.encode()) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes"
    if not names or root == "":
        return "it has no root's name before a slash"
    if not _ROOT_NAME.fullmatch(root):
        return f"{root[:100]!r} is not the name of a root"
    if "" in names:
        return "it has an empty name"
    if "." in names or ".." in names:
        return "it has a name of dots"
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        return f"it has a name longer than {LONGEST_NAME} bytes"
    return None


def missing(text: str) -> ProblemError:
    """The problem if nothing exists at a path of an allowed root, or a link leads out of the root."""
    return ProblemError(
        NOT_FOUND, f"there is nothing at {text[:200]!r}; check the path", remedy="check the path"
    )


def nothing(text: str) -> ProblemError:
    """The problem if the root does not exist, or the caller may not use it."""
    return ProblemError(
        NOT_FOUND,
        f"there is nothing at {text[:200]!r} that this token may use; check root and path",
        remedy="check root and path",
    )


def best_lookup() -> Lookup:
    """The kernel's lookup if it has one, else our own."""
    return lookup_by_kernel if open_beneath.is_supported() else lookup_by_walk


def lookup_by_kernel(base: str, names: tuple[str, ...]) -> Path:
    """Uses ``openat2``: the kernel refuses links that lead out while it resolves the path."""
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor = open_beneath.open_beneath(folder, "/".join(names) or ".")
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
    """Resolves name by name, for kernels without ``openat2``; equivalent as long as nobody changes links meanwhile."""
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
