"""TargetJob: one target, planned and ready to run, with its identity and its name in errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.plan import ConversionPlan
from reshard.conversion.prepare import Prepared
from reshard.conversion.resume.identity import Identity, plan_digest
from reshard.formats.registry import local_path
from reshard.storage.staging import staging_for


class TargetJob(Struct, frozen=True):
    """A prepared conversion to one target, and how it is to be carried out.

    Attributes:
        name: what errors call the target; None where it is the only one.
    """

    prepared: Prepared
    options: CheckedOptions
    identity: Identity
    restart: bool
    name: str | None

    @property
    def summary(self) -> ConversionPlan:
        return self.prepared.summary

    @property
    def path(self) -> Path:
        return Path(self.prepared.path)

    @property
    def staging_folder(self) -> Path:
        return staging_for(self.path).folder


def target_job_of(
    prepared: Prepared, wanted: CheckedTarget, identity: Identity, name: str | None
) -> TargetJob:
    """With the plan in the identity, and the identity in what will be written."""
    options, plan = wanted.options, prepared.summary.plan
    checkpoint = replace(prepared.target.checkpoint, conversion=identity.output)
    planned = replace(identity, plan=plan_digest(plan, checkpoint, options))
    prepared = replace(prepared, target=replace(prepared.target, checkpoint=checkpoint))
    return TargetJob(prepared, options, planned, wanted.restart, name)


def absolute(source: str, wanted: Sequence[CheckedTarget]) -> tuple[str, list[CheckedTarget]]:
    """The same by absolute paths: a worker of the executor may stand in another folder, and the
    caller's may change meanwhile."""
    made = [replace(one, target=str(Path(one.target).absolute())) for one in wanted]
    return str(Path(local_path(source)).absolute()), made
