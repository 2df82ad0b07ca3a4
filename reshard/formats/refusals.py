"""Refusals that several formats share: leaves that are not tensors, and databases in buckets."""

from __future__ import annotations

from reshard.errors import FormatError, PlanError
from reshard.formats.base import Form, Reader, TargetCheckpoint
from reshard.formats.format import Format
from reshard.storage.base import Traits

_MOST_SHOWN = 8


def refuse_others(known: Format, target: TargetCheckpoint, source: Reader) -> None:
    """Raises FormatError, listing them, for strings, None, empty containers and PRNG keys, where the format holds tensors only."""
    if not known.about.tensors_only:
        return
    others = [f"{leaf.name!r} ({leaf.kind})" for leaf in target.leaves if not leaf.tensor]
    keys = {name for name, tensor in source.tensors.items() if tensor.is_key}
    others += [f"{leaf.name!r} (a PRNG key)" for leaf in target.leaves if leaf.name in keys]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
        raise FormatError(
            f"{known.about.title} files hold tensors only, and cannot hold {', '.join(others[:_MOST_SHOWN])}{more}; leave them out "
            "(drop), or write Orbax (to)"
        )


def refuse_database(form: Form, traits: Traits) -> None:
    """Raises PlanError for a target in a database, where files are not written in place, or other processes write too."""
    if traits.by_hosts and form.put_bytes(0) is not None:
        raise PlanError(
            "an OCDBT database is written by one process, but the tasks run in others; leave it out (ocdbt), so that chunks are files, or "
            "convert with threads of one host (executor, part)"
        )
    if not traits.in_place and form.put_bytes(0) is not None:
        raise PlanError(
            "an OCDBT database is not written to a bucket; leave it out (ocdbt), so that chunks are objects, or write to a local "
            "disk and copy the folder from there, commit_success.txt last"
        )
