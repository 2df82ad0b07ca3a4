"""Checks a schedule that publishes versions of the weights: its watched folder, and its one target."""

from __future__ import annotations

import re

from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.schemas.schedule import Clock, ScheduleBody

_TARGET = re.compile(r"[^/{}]+(/([^/{}]|\{name\})+)+/weight_v\{version\}")
_WHOLE = ("layout", "mesh")


def check_versions(body: ScheduleBody) -> None:
    """Raises ProblemError for a schedule whose outputs cannot be versions."""
    if isinstance(body.when, Clock):
        raise ProblemError(
            INVALID,
            "delta is for the steps of a training run, but this schedule goes by the clock; give when.directory, or leave delta out",
            "/delta",
        )
    if len(body.targets) != 1:
        raise ProblemError(
            INVALID,
            f"a schedule with delta publishes in one folder, but has {len(body.targets)} targets; give one target, and a schedule for each other",
            "/targets",
        )
    [target] = body.targets
    if not _TARGET.fullmatch(target.target):
        raise ProblemError(
            INVALID,
            f"the target {target.target[:200]!r} of a schedule with delta should be a folder below a root and weight_v{{version}} in it, such as "
            "data/published/weight_v{version}",
            "/targets/0/target",
        )
    if getattr(target, "to", None) != "safetensors":
        raise ProblemError(
            INVALID,
            'versions are safetensors files; give the target "to": "safetensors"',
            "/targets/0/to",
        )
    for name in _WHOLE:
        if getattr(target, name) is not None:
            raise ProblemError(
                INVALID,
                f"{name} would split tensors over files, but deltas stand on whole tensors; leave {name} out",
                f"/targets/0/{name}",
            )
    if target.overwrite:
        raise ProblemError(
            INVALID,
            "a version that receivers may have read is not replaced; leave overwrite out",
            "/targets/0/overwrite",
        )
