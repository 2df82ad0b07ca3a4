"""The state of a source: a digest by which a change is noticed, compared on every host of an executor.

It is the name, size and time of change of every file in it, in a bucket the name and version: nothing else shows that a checkpoint
was written anew, short of reading it. slices.json and the files of an identity do not count, since recording digests or signing does
not change a checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct

from reshard.engine.executor import HostsExecutor
from reshard.errors import ReshardError, StorageError
from reshard.formats.known_formats import files_of
from reshard.formats.names import OF_RECORDS
from reshard.storage.host import host_name
from reshard.storage.local.staging import begin_attempt, has_attempt
from reshard.storage.location import MISSING, Location, locate
from reshard.storage.targets import check_lease
from reshard.storage.transaction import RemoteAccess
from reshard.version import __version__


def source_state(root: Location, deltas: Sequence[Location] = ()) -> str:
    """Digest of the state of a checkpoint's files, 32 hex digits: locally name, size and time of change (ns), in a bucket the
    version.

    The files are all that are below a folder, a file by itself, or those that a prefix stands for.

    A missing file counts as missing here; reading it is an error. Raises StorageError where the system refuses
    to list a folder: a state that is only half known would be another one the next time.
    """
    lines = list(root.state(OF_RECORDS))
    # In a bucket it takes requests to look for the files of a prefix; a root that is a file needs none.
    listed = files_of(root, is_there=root.local is None and lines != [MISSING])
    if listed is not None:
        lines = [f"{file.name}{line}" for file in listed for line in file.state()]
    return state_digest(itertools.chain(lines, (line for each in deltas for line in each.state())))


def state_digest(lines: Iterable[str]) -> str:
    """The digest of some lines, 32 hex digits."""
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode(errors="surrogateescape") + b"\n")
    return found.hexdigest()[:32]


class Seen(Struct, frozen=True):
    """The findings of one host.

    Attributes:
        version: of reshard.
        source: the state of the source; "" where it cannot be read.
        error: the reason why the source cannot be read or the target cannot be written; "" without one.
        attempts: the folder that it made in each folder of attempts; the run looks for it.
    """

    version: str
    source: str = ""
    error: str = ""
    attempts: tuple[str, ...] = ()


def check_hosts(
    executor: HostsExecutor, source: str, state: str, elsewhere: Sequence[RemoteAccess]
) -> None:
    """Raises an error that names host and path where a host has another version, source or file system.

    Args:
        state: of the source as this process sees it.
        elsewhere: the access of tasks on other hosts to each target.
    """
    found = executor.on_each_host(partial(seen_here, source, elsewhere))
    for host, seen in found.items():
        if seen.version != __version__:
            raise ReshardError(
                f"host {host!r} has reshard {seen.version}, but this run is of {__version__}; install the same version on every host"
            )
        if seen.error:
            is_named = repr(host) in seen.error
            raise StorageError(seen.error if is_named else f"host {host!r}: {seen.error}")
        if seen.source != state:
            raise StorageError(
                f"host {host!r} sees another source at {source!r}: the names, sizes or times of its files are not those that "
                f"{host_name()!r} sees; give a path on a file system that all hosts share, or a URL of a bucket"
            )
        for each, made in zip(elsewhere, seen.attempts, strict=True):
            if made and not has_attempt(each.attempts, made):
                raise StorageError(
                    f"host {host!r} writes to another file system at {each.attempts!r} than {host_name()!r}; give a target on a file system "
                    "that all hosts share, or a URL of a bucket"
                )


def seen_here(source: str, elsewhere: Sequence[RemoteAccess]) -> Seen:
    """The findings of this host; runs on the host itself."""
    try:
        made = tuple(begin_attempt(e.attempts) if e.attempts else "" for e in elsewhere)
        for each in elsewhere:
            if each.lease is not None:
                check_lease(*each.lease)
        return Seen(__version__, source_state(locate(source)), attempts=made)
    except ReshardError as error:
        return Seen(__version__, error=str(error))
