"""The JSON objects of commands with ``--json`` and of the service's answers.

``docs/reference/json-output.md`` lists their members. Sizes are in bytes, times in seconds; unknown values are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.record import values

if TYPE_CHECKING:
    from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
    from reshard.conversion.report import ConversionReport, PartReport, RequestReport, TimeReport
    from reshard.deltas.prune_versions import CleanedVersions
    from reshard.deltas.report import DeltaReport
    from reshard.deltas.versions import VersionInfo
    from reshard.documents.checkpoints import Inspection
    from reshard.documents.plans import MultiPlanAnswer, PlanAnswer
    from reshard.identity.identification import Identification
    from reshard.inspection.checkpoint_info import CheckpointInfo
    from reshard.inspection.layout_preview import LayoutPreview
    from reshard.inspection.run_steps import StepInfo
    from reshard.planning.estimates import TimePlan
    from reshard.storage.buckets.doctor import BucketReport
    from reshard.storage.leftovers import Leftovers
    from reshard.verification.diff_report import DiffReport
    from reshard.verification.fingerprint import Fingerprint
    from reshard.verification.verify_report import Verification

__all__ = [
    "answer_of",
    "applied",
    "clean",
    "cleaned_versions",
    "content_document",
    "conversion_plan",
    "conversion_plans",
    "conversion_report",
    "conversion_reports",
    "delta_document",
    "diff_document",
    "doctor",
    "fingerprint",
    "identify",
    "inspection",
    "layout_document",
    "plan_document",
    "plans_document",
    "recorded_identity",
    "run_steps",
    "sign",
    "starter_document",
    "verification",
    "versions_document",
]

Document = dict[str, Any]


def run_steps(run: str, steps: Sequence[StepInfo]) -> Document:
    """The object of ``steps``."""
    return {"command": "steps", "uri": run, "steps": [step.to_dict() for step in steps]}


def answer_of(command: str, document: Struct) -> Document:
    """The object of a command, made from its document."""
    answer = {"command": command, **values(document)}
    if "plans" in answer:
        answer["plans"] = [{"command": command, **plan} for plan in answer["plans"]]
    return answer


def content_document(info: CheckpointInfo) -> Inspection:
    """The document of ``inspect``."""
    return info._document()


def inspection(info: CheckpointInfo) -> Document:
    """The object of ``inspect``."""
    return answer_of("inspect", content_document(info))


def plan_document(
    planned: ConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> PlanAnswer:
    """The document of ``plan``; ``link`` has arguments of ``RequestPlan.seconds``, ``time`` is given only if asked for."""
    return planned._document(with_shares, time, **link)


def plans_document(
    planned: MultiConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> MultiPlanAnswer:
    """The document of ``plan`` with ``--target``."""
    return planned._document(with_shares, time, **link)


def conversion_plan(
    planned: ConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan``."""
    return answer_of("plan", plan_document(planned, with_shares, time, **link))


def conversion_plans(
    planned: MultiConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan`` with ``--target``."""
    return answer_of("plan", plans_document(planned, with_shares, time, **link))


def conversion_report(report: ConversionReport | PartReport) -> Document:
    """The object of ``convert``, and of ``convert --part``."""
    return {"command": "convert", **report.to_dict()}


def applied(report: ConversionReport) -> Document:
    """The object of ``apply``."""
    return {"command": "apply", **report.to_dict()}


def delta_document(report: DeltaReport) -> Document:
    """The object of ``delta``."""
    return {"command": "delta", **report.to_dict()}


def versions_document(uri: str, versions: Sequence[VersionInfo]) -> Document:
    """The object of ``inspect`` of versions."""
    return {"command": "inspect", "uri": uri, "versions": [one.to_dict() for one in versions]}


def conversion_reports(
    source: str,
    reports: Sequence[Document],
    read_bytes: int | None,
    requests: RequestReport | None = None,
    time: TimeReport | None = None,
) -> Document:
    """The object of ``convert`` with ``--target``; ``read_bytes`` is null if an older server converted."""
    return {
        "command": "convert",
        "source": source,
        "reports": reports,
        "read_bytes": read_bytes,
        "requests": requests and requests.to_dict(),
        **({} if time is None else {"time": time.to_dict()}),
    }


def verification(found: Verification) -> Document:
    """The object of ``verify``; ``equal`` is true if everything was compared and agrees."""
    return {"command": "verify", **found.to_dict()}


def diff_document(found: DiffReport) -> Document:
    """The object of ``diff``; ``equal`` is true if nothing differs."""
    return {"command": "diff", **found.to_dict()}


def doctor(found: BucketReport) -> Document:
    """The object of ``doctor``."""
    return {"command": "doctor", **found.to_dict()}


def clean(found: Leftovers) -> Document:
    """The object of ``clean``."""
    return {"command": "clean", **found.to_dict()}


def cleaned_versions(found: CleanedVersions) -> Document:
    """The object of ``clean --versions``."""
    return {"command": "clean", "nbytes": found.nbytes, **found.to_dict()}


def fingerprint(found: Fingerprint) -> Document:
    """The object of ``fingerprint``."""
    return {"command": "fingerprint", **found.to_dict()}


def identify(found: Identification) -> Document:
    """The object of ``identify``."""
    return {"command": "identify", **found.to_dict()}


def recorded_identity(path: str) -> Document | None:
    """The root and the signers recorded beside weights, for pages; not verified. None without an identity.

    ``root`` is null if ``identity.json`` cannot be read; ``problem`` says why it, or the signature, cannot.
    """
    from reshard.errors import ReshardError
    from reshard.identity.envelope import recorded_signers
    from reshard.identity.identity_file import read_identity
    from reshard.storage.location import locate

    folder = locate(path).view()
    root: str | None = None
    try:
        found = read_identity(folder)
        if found is None:
            return None
        root = found.root
        return {"root": root, "signers": recorded_signers(folder), "problem": ""}
    except ReshardError as error:
        return {"root": root, "signers": (), "problem": str(error)}


def sign(found: Identification) -> Document:
    """The object of ``sign``."""
    return {"command": "sign", **found.to_dict()}


def starter_document(source: str, text: str) -> Document:
    """The object of ``layout --starter``."""
    return {"command": "layout", "source": source, "starter": text}


def layout_document(file: str | None, source: str, preview: LayoutPreview) -> Document:
    """The object of ``layout``."""
    laid_out = replace(preview._document(), file=file, source=source)
    return {"command": "layout", **values(laid_out)}
