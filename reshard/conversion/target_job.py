"""TargetJob: one target, planned and ready to run."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.plan import ConversionPlan
from reshard.conversion.prepare import Planned, error_name
from reshard.conversion.read_back import check_read_back
from reshard.conversion.resume.identity import Identity, plan_digest
from reshard.conversion.source_digests import check_unseen_memory
from reshard.engine.error_context import about_target
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.write.uploads import Uploads
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.registry import plan_files
from reshard.planning.tensor_plan import Plan
from reshard.storage.location import Location, locate
from reshard.storage.targets import has_leftovers, root_text


class TargetJob(Struct, frozen=True):
    """One target as it is planned.

    Attributes:
        number: its place among the targets of the call.
        name: what errors call it; None where it is the only one.
        restart: whether to start over, whatever an unfinished run has left.
        identity: of this conversion, with its plan.
        reader: the open source.
        checkpoint: what will be written.
        by_hosts: whether tasks run in processes that this one does not end with itself, perhaps on other hosts.
    """

    number: int
    name: str | None
    place: Location
    options: CheckedOptions
    restart: bool
    identity: Identity
    reader: Reader
    checkpoint: TargetCheckpoint
    summary: ConversionPlan
    by_hosts: bool = False

    @property
    def plan(self) -> Plan:
        return self.summary.plan

    @property
    def file(self) -> str:
        """Name of the staged file that becomes the target; "" where a folder does."""
        return self.checkpoint.form.file

    @property
    def has_leftovers(self) -> bool:
        """Whether a run that is unfinished, or writing now, has begun it."""
        return has_leftovers(self.place, self.file, self.options.state)


def target_jobs(
    planned: Planned,
    targets: Sequence[CheckedTarget],
    identities: Sequence[Identity],
    finished: Container[int],
) -> list[TargetJob]:
    """A job for each target that is not ``finished``."""
    return [
        _target_job(planned, number, error_name(target, targets), target, identity)
        for number, (target, identity) in enumerate(zip(targets, identities, strict=True))
        if number not in finished
    ]


def _target_job(
    planned: Planned, number: int, name: str | None, target: CheckedTarget, identity: Identity
) -> TargetJob:
    """With the plan in the identity, and the identity in what will be written."""
    summary = planned.summary.plans[number]
    checkpoint = replace(planned.checkpoints[number], conversion=identity.output)
    return TargetJob(
        number,
        name,
        locate(target.target),
        target.options,
        target.restart,
        replace(identity, plan=plan_digest(summary.plan, checkpoint)),
        planned.reader,
        checkpoint,
        summary,
        planned.by_hosts,
    )


def open_output(job: TargetJob, limits: Limits) -> TargetOutput:
    """The output of a job, before anything is written.

    Raises FormatError for what the format cannot hold, MemoryBudgetError for what could not be proved at the end.
    """
    checkpoint = job.checkpoint
    with about_target(job.name):
        if job.options.check == "readback":
            check_read_back(job.plan, job.reader, checkpoint, limits)
        check_unseen_memory(job.plan, job.reader, limits)
        files = plan_files(checkpoint)
    encodings = {name: tensor.encoding for name, tensor in checkpoint.tensors.items()}
    is_in_order = any(tensor.target.in_order is not None for tensor in job.plan.tensors)
    uploads = None
    if is_in_order and not job.place.traits.in_place:
        uploads = Uploads(job.place, files.shared_file)
    root = root_text(job.place, job.file)
    return TargetOutput(files, encodings, root, job.name, uploads)
