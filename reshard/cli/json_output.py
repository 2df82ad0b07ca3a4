"""``--json``: one object on one line of stdout for each command, with stable keys.

``docs/reference/json-output.md`` lists them. Sizes are bytes, times seconds; unknown values are null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.record import plain as plain

if TYPE_CHECKING:
    from reshard import (
        BucketReport,
        CheckpointInfo,
        ConversionPlan,
        ConversionReport,
        DiffReport,
        Fingerprint,
        LayoutPreview,
        Leftovers,
        MultiConversionPlan,
        PartReport,
        RequestReport,
        StepInfo,
        TimePlan,
        TimeReport,
        Verification,
    )

Document = dict[str, Any]


def print_json(document: Document) -> None:
    """Writes one line to stdout; only ASCII, so that no name can steer a terminal."""
    sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")


def run_steps(run: str, steps: Sequence[StepInfo]) -> Document:
    """The object of ``steps``."""
    return {"command": "steps", "uri": run, "steps": [step._document() for step in steps]}


def inspection(info: CheckpointInfo) -> Document:
    """The object of ``inspect``."""
    return {"command": "inspect", **info._document()}


def conversion_plan(
    planned: ConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan``; ``link`` is what ``RequestPlan.seconds`` takes. ``time`` is there only if it was asked for."""
    return {"command": "plan", **planned._document(with_shares, time, **link)}


def conversion_plans(
    planned: MultiConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan`` with ``--target``."""
    document = planned._document(with_shares, time, **link)
    plans = [{"command": "plan", **plan} for plan in document["plans"]]
    return {"command": "plan", **document, "plans": plans}


def conversion_report(report: ConversionReport) -> Document:
    """The object of ``convert``."""
    return {"command": "convert", **report._document()}


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
        "requests": requests and requests._document(),
        **({} if time is None else {"time": time._document()}),
    }


def verification(found: Verification) -> Document:
    """The object of ``verify``; ``equal`` is true if everything was compared and agrees."""
    return {"command": "verify", **found._document()}


def diff_document(found: DiffReport) -> Document:
    """The object of ``diff``; ``equal`` is true if nothing differs."""
    return {"command": "diff", **found._document()}


def doctor(found: BucketReport) -> Document:
    """The object of ``doctor``."""
    return {"command": "doctor", **found._document()}


def part_report(report: PartReport) -> Document:
    """The object of ``convert --part``."""
    return {"command": "convert", **report._document()}


def clean(found: Leftovers) -> Document:
    """The object of ``clean``."""
    return {"command": "clean", **found._document()}


def fingerprint(found: Fingerprint) -> Document:
    """The object of ``fingerprint``."""
    return {"command": "fingerprint", **found._document()}


def starter_document(source: str, text: str) -> Document:
    """The object of ``layout --starter``."""
    return {"command": "layout", "source": source, "starter": text}


def layout_document(file: str | None, source: str, preview: LayoutPreview) -> Document:
    """The object of ``layout``."""
    return {"command": "layout", "file": file, "source": source, **preview._document()}
