"""Asks every host of an executor, before the run, whether it sees the source and the target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from reshard.conversion.conversion_key import source_state
from reshard.conversion.target_job import OpenTarget
from reshard.engine.executor import HostsExecutor
from reshard.errors import ReshardError, StorageError
from reshard.storage.host import host_name
from reshard.storage.local.staging import begin_attempt, has_attempt
from reshard.storage.location import locate
from reshard.storage.targets import check_lease
from reshard.storage.transaction import RemoteAccess
from reshard.version import __version__


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
    executor: HostsExecutor, source: str, state: str, targets: Sequence[OpenTarget]
) -> None:
    """Raises an error that names host and path where a host has another version, source or file system.

    ``state`` is that of the source as this process sees it.
    """
    elsewhere = [t.output.elsewhere for t in targets if t.output.elsewhere is not None]
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
