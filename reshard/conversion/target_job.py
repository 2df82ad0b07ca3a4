"""TargetJob: one target as it is planned. OpenTarget: the same while a run writes it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.conversion_key import ConversionKey, plan_digest
from reshard.conversion.journal import (
    JournaledChunk,
    journaled_chunks,
    read_results,
    record_of,
)
from reshard.conversion.known_identity import KnownIdentity
from reshard.conversion.make_plan import error_name, space_left
from reshard.conversion.plan import ConversionPlan
from reshard.conversion.proof import check_read_back, check_unseen_memory
from reshard.conversion.target_plan import Planned
from reshard.engine.books import Books, DoneUnits, TargetRun
from reshard.engine.error_context import about_target
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput, Uploads
from reshard.engine.progress import Progress
from reshard.engine.task import Result
from reshard.errors import StorageError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.registry import CheckpointPath
from reshard.geometry.sizes import format_bytes
from reshard.planning.plans import Plan
from reshard.storage.location import Location, locate
from reshard.storage.parts import Part, part_root
from reshard.storage.target import recording_versions
from reshard.storage.targets import device_of, has_leftovers, root_text
from reshard.storage.transaction import Transaction


class TargetJob(Struct, frozen=True):
    """One target as it is planned.

    Attributes:
        number: its place among the targets of the call.
        name: its name in errors; None where it is the only one.
        restart: start over, whatever an unfinished run has left.
        key: of this conversion, with its plan.
        reader: the open source.
        checkpoint: the content to write.
        by_hosts: true if tasks run in processes that may outlive this one, perhaps on other hosts.
        equal: pairs of source tensors that a map says are equal.
        weights: the plan for the identity of the weights.
        deltas: those over the source.
    """

    number: int
    name: str | None
    place: Location
    options: CheckedOptions
    restart: bool
    key: ConversionKey
    reader: Reader
    checkpoint: TargetCheckpoint
    summary: ConversionPlan
    by_hosts: bool = False
    equal: tuple[tuple[str, str], ...] = ()
    weights: KnownIdentity = KnownIdentity()
    deltas: tuple[Location, ...] = ()

    @property
    def plan(self) -> Plan:
        found: Plan = self.summary.plan
        return found

    @property
    def file(self) -> str:
        """Name of the staged file that becomes the target; "" where a folder does."""
        return self.checkpoint.form.file

    @property
    def has_leftovers(self) -> bool:
        """True if a run that is unfinished, or writing now, has begun it."""
        return has_leftovers(self.place, self.file, self.options.state)


def target_jobs(
    planned: Planned,
    source: CheckpointPath,
    targets: Sequence[CheckedTarget],
    keys: Sequence[ConversionKey],
    finished: Container[int],
) -> list[TargetJob]:
    """A job for each target that is not ``finished``."""
    return [
        _target_job(planned, source, number, error_name(target, targets), target, key)
        for number, (target, key) in enumerate(zip(targets, keys, strict=True))
        if number not in finished
    ]


def _target_job(
    planned: Planned,
    source: CheckpointPath,
    number: int,
    name: str | None,
    target: CheckedTarget,
    key: ConversionKey,
) -> TargetJob:
    """The job of one target: its key contains the plan, and its checkpoint the key's name of the output."""
    summary = planned.summary.plans[number]
    checkpoint = replace(planned.checkpoints[number], conversion=key.output)
    return TargetJob(
        number,
        name,
        locate(target.target),
        target.options,
        target.restart,
        replace(key, plan=plan_digest(summary.plan, checkpoint)),
        planned.reader,
        checkpoint,
        summary,
        planned.by_hosts,
        planned.equal[number],
        planned.weights[number],
        source.deltas,
    )


def open_output(job: TargetJob, limits: Limits, part: Part | None = None) -> TargetOutput:
    """The output of a job, or of one part of it, before anything is written.

    Raises FormatError for content that the format cannot hold, MemoryBudgetError for tensors that could not be proved at the end.
    """
    checkpoint = job.checkpoint
    with about_target(job.name):
        if job.options.check == "readback":
            check_read_back(job.plan, job.reader, checkpoint, limits)
        check_unseen_memory(job.plan, job.reader, limits, job.equal)
        files = checkpoint.form.plan(checkpoint)
    encodings = {name: tensor.encoding for name, tensor in checkpoint.tensors.items()}
    sides = [tensor.target for tensor in job.plan.tensors]
    is_sent = any(side.in_order is not None and not side.ends_with_chunk for side in sides)
    uploads = Uploads(job.place, files.shared_file) if is_sent else None
    root = root_text(job.place, job.file) if part is None else part_root(job.place, part)
    return TargetOutput(files, encodings, root, job.name, uploads)


class OpenTarget(Struct):
    """A job with its transaction, and the work that is done.

    Attributes:
        progress: called with the progress of this target.
        parts: those whose work a commit takes over, each held by it.
        done: units that an earlier run filled; None until this run has begun, or has taken over from an earlier one.
        put: the version of each metadata file that this run has put into a bucket, by its path.
        is_published: true if the target has appeared, so that only temporary files are left to remove.
    """

    job: TargetJob
    transaction: Transaction
    output: TargetOutput
    books: Books
    progress: Callable[[Progress], None] | None = None
    parts: Mapping[Part, Transaction] = {}
    done: DoneUnits | None = None
    put: dict[str, str] = {}
    is_published: bool = False

    @property
    def recording_root(self) -> Location:
        """The root for the files that the format writes; in a bucket it records their versions."""
        return recording_versions(self.transaction.root, self.put)

    @property
    def is_begun(self) -> bool:
        """True if this run has begun the target, or has taken it over from an earlier run."""
        return self.done is not None

    @property
    def has_files_of_parts(self) -> bool:
        """True if its parts write below its own root, as in a bucket; else their files are moved there."""
        root = self.transaction.root
        return any(part.root == root for part in self.parts.values())

    @property
    def run(self) -> TargetRun:
        """The part that the engine needs."""
        return TargetRun(self.output, self.books, self.done, self._record)

    def recorded(self) -> Iterator[Result]:
        """The units that are recorded, read anew with each call."""
        return read_results(self.transaction.records(), self.job.plan)

    def recorded_chunks(self, *, of_others: bool = False) -> Iterator[JournaledChunk]:
        """The chunks of these units; ``of_others``: of those that other hosts have filled."""
        results = (one for one in self.recorded() if one.host or not of_others)
        return journaled_chunks(results, self.job.plan, self.output)

    def _record(self, results: Sequence[Result]) -> None:
        self.transaction.append(record_of(results))


def check_space(jobs: Sequence[TargetJob]) -> None:
    """Raises StorageError where there is no room for targets that no run has begun."""
    _check([(job, job.plan.written_bytes) for job in jobs if not job.has_leftovers])


def check_space_left(targets: Sequence[OpenTarget]) -> None:
    """Raises StorageError where there is no room for the bytes that earlier runs have not written."""
    _check(
        [
            (target.job, target.job.plan.written_bytes - target.books.written_bytes)
            for target in targets
        ]
    )


def _check(needs: Sequence[tuple[TargetJob, int]]) -> None:
    """Checks raw output, whose size is known; compressed output may be smaller, so that it is not checked."""
    by_device: dict[int, list[tuple[TargetJob, int]]] = {}
    for job, nbytes in needs:
        is_raw = all(t.encoding.compressor == "none" for t in job.checkpoint.tensors.values())
        device = device_of(job.place) if is_raw else None
        if device is not None:
            by_device.setdefault(device, []).append((job, nbytes))
    for on_device in by_device.values():
        _check_device([str(job.place) for job, _ in on_device], sum(n for _, n in on_device))


def _check_device(targets: Sequence[str], need: int) -> None:
    free = space_left(targets[0])
    if free is not None and need > free:
        needs, whose = ("needs", "its") if len(targets) == 1 else ("need", "their")
        raise StorageError(
            f"{' and '.join(map(repr, targets))} {needs} {format_bytes(need)}, but {whose} file system has only "
            f"{format_bytes(free)} free; free space, choose another target, or narrow what is "
            "converted (select, cast)"
        )
