"""Decides whether a target is already the finished result of this very conversion.

The identity of a target that an earlier run finished: recorded in it, or computed from its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

from msgspec import Struct

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.conversion_key import ConversionKey
from reshard.conversion.finish import check_complete
from reshard.conversion.journal import key_left
from reshard.conversion.known_identity import identity_of_source, no_deltas_to, nothing_to
from reshard.conversion.report import IdentityReport
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import left_to_read, open_to_convert
from reshard.engine.progress import Progress
from reshard.errors import (
    CorruptError,
    FormatError,
    ReshardError,
    ResumeError,
    StorageError,
    VerificationError,
)
from reshard.formats.base import Reader
from reshard.formats.known_formats import files_of
from reshard.formats.names import IDENTITY_NAME
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.identity.envelope import recorded_signature
from reshard.identity.identity_file import read_identity
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity, identity_of
from reshard.planning.rules import rewrites
from reshard.storage.location import Location, locate
from reshard.storage.targets import has_leftovers, is_link, lock_target, make_name_durable
from reshard.storage.transaction import Transaction


class ExpectedBySource(Struct, frozen=True):
    """The weights that a finished target must have according to its source.

    Attributes:
        reader: the open source.
        tensors: those that the source's identity records, by name; None with deltas over the source, which record a root at most.
        root: the root that the last of the deltas records; None without deltas.
        origins: the source tensor of each target tensor; None where a map made them.
    """

    reader: Reader
    tensors: Mapping[str, TensorIdentity] | None
    root: str | None
    origins: Mapping[str, str] | None


def recorded_report(finished: Reader) -> IdentityReport | None:
    """The identity that a finished target records; None where it records none."""
    folder = locate(finished.uri).view()
    found = read_identity(folder)
    if found is None:
        return None
    return IdentityReport(found.root, "recorded", signers=_signers(folder, found.root))


def _signers(folder: Location, root: str) -> tuple[str, ...]:
    """The signers of a root, from the envelope in a folder; none where it is unreadable or of another root."""
    try:
        found = recorded_signature(folder)
    except FormatError:
        return ()
    return () if found is None or found.root != root else found.signers


def finished_identity(
    chosen: CheckpointPath,
    options: CheckedOptions,
    finished: Reader,
    progress: Callable[[Progress], None] | None,
) -> IdentityReport | None:
    """The identity of a finished target, as this run asks for it; for compute and check all of the target is read.

    Raises VerificationError where the target has another root than it records, or with check tensors that are not the source's;
    PlanError with check where the source records nothing to compare with.
    """
    if options.identity == "none":
        return None
    if options.identity not in ("compute", "check"):
        return recorded_report(finished)
    folder = locate(finished.uri).view()
    recorded = read_identity(folder)
    expected = _expected(chosen, options) if options.identity == "check" else None
    readers = (finished,) if expected is None else (finished, expected.reader)
    limits = Limits(left_to_read(options.max_memory, *readers), options.workers)
    found = identity_of(finished, limits, progress, "identifying")
    if recorded is not None and recorded.root != found.root:
        raise VerificationError(
            f"{finished.uri!r} was finished before, and what it holds has the root {found.root}, but its {IDENTITY_NAME} records "
            f"{recorded.root}: its weights or that file changed since; make it again (overwrite)"
        )
    signers = _signers(folder, found.root)
    if expected is None:
        return IdentityReport(found.root, "computed", signers=signers)
    _refuse_other_weights(finished, found, expected)
    return IdentityReport(found.root, "checked", signers=signers)


def _expected(chosen: CheckpointPath, options: CheckedOptions) -> ExpectedBySource:
    """The weights that the source records; PlanError where it records nothing to compare the target with."""
    reader = open_to_convert(chosen, options.max_memory)
    origins = None if options.given_map is not None else _origins(reader, options)
    if reader.version is not None:
        if reader.version.root is None or origins != {name: name for name in reader.tensors}:
            raise no_deltas_to("check", reader)
        return ExpectedBySource(reader, None, reader.version.root, origins)
    found = identity_of_source(reader, chosen.root)
    if found is None:
        raise nothing_to("check", reader)
    return ExpectedBySource(reader, found.tensors, None, origins)


def _origins(reader: Reader, options: CheckedOptions) -> dict[str, str]:
    """The source tensor of each target tensor, by the rules of the conversion."""
    kept = rewrites(
        options.changes,
        [leaf.name for leaf in reader.leaves],
        {name: tensor.spec for name, tensor in reader.tensors.items()},
        {name for name, tensor in reader.tensors.items() if tensor.is_key},
    )
    return {each.target: each.source for each in kept if each.source in reader.tensors}


def _refuse_other_weights(
    finished: Reader, found: WeightsIdentity, expected: ExpectedBySource
) -> None:
    if expected.tensors is None:
        if found.root != expected.root:
            raise VerificationError(
                f"{finished.uri!r} was finished before, and what it holds has the root {found.root}, but the last of the deltas over "
                f"{expected.reader.uri!r} records {expected.root}; make it again (overwrite)"
            )
        return
    other = next(_others(found, expected.tensors, expected.origins), None)
    if other is not None:
        raise VerificationError(
            f"{finished.uri!r} was finished before, and the identity of the source {expected.reader.uri!r} has no tensor with the dtype, "
            f"shape and bits of its {other!r}; make it again (overwrite), or compute its root alone (identity) where it was cast or "
            "computed by a map"
        )


def _others(
    found: WeightsIdentity, source: Mapping[str, TensorIdentity], origins: Mapping[str, str] | None
) -> Iterator[str]:
    """The tensors of a target that differ from those of its source, and those that it lacks."""
    if origins is None:  # a map may take any of them
        known = {tensor.entry for tensor in source.values()}
        yield from (name for name, tensor in found.tensors.items() if tensor.entry not in known)
        return
    for name in {**origins, **found.tensors}:
        tensor, of_source = found.tensors.get(name), source.get(origins.get(name, ""))
        if tensor is None or of_source is None or tensor.entry != of_source.entry:
            yield name


def open_result(target: str, key: ConversionKey) -> Reader | None:
    """The target, if it can be opened and its record names this conversion of this source; else None.

    Raises CorruptError where a chunk of it is missing or cut short: it was damaged since.
    """
    try:
        place = locate(target)
        if is_link(place) or not (place.exists() or files_of(place)):
            return None
        reader = open_reader(target)
        made_by = reader.conversion
    except (ReshardError, OSError):
        return None
    if made_by != key.output:
        return None
    _refuse_incomplete(target, reader)
    return reader


def _refuse_incomplete(target: str, reader: Reader) -> None:
    try:
        check_complete(reader)
    except CorruptError as error:
        raise CorruptError(
            f"the target {target!r} is the finished result of this conversion, but was damaged since: {error}; "
            "make it again (overwrite), or choose another target"
        ) from error


def clean_published(asked: CheckedTarget, key: ConversionKey) -> None:
    """Removes the files of a run of this conversion that was killed after it published.

    It may have been killed before the target's name was durable, so that is done here.
    """
    target, options = locate(asked.target), asked.options
    if not has_leftovers(target, state=options.state):
        return
    with ExitStack() as stack:
        try:
            held = lock_target(target, unsafe=options.unsafe_commit, state=options.state)
            transaction = stack.enter_context(held)
        except StorageError:
            return
        make_name_durable(target)
        abort_own(transaction, key)


def abort_own(transaction: Transaction, key: ConversionKey) -> None:
    """Removes the files of an earlier run, unless another conversion can resume it."""
    try:
        left = key_left(transaction.left_by())
    except ResumeError:
        return
    if left is None or left.output == key.output:
        transaction.abort()
