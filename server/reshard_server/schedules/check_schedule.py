"""Checks a schedule before it is stored, as far as that is possible without a run; also one that publishes versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from reshard.storage.hub.address import MAIN, HubAddress, parse_hub
from reshard.storage.location import is_in_hub
from reshard_server.auth.hub_names import hub_url
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.jobs.check_request import check_job
from reshard_server.schedules.cron import check_cron, next_tick
from reshard_server.schedules.scheduling import (
    OF_CLOCK,
    OF_STEPS,
    OF_VERSIONS,
    Occasion,
    Scheduling,
    check_template,
    fields_of,
    request_of,
    source_of,
)
from reshard_server.schemas.conversion import DeltaForm
from reshard_server.schemas.schedule import Clock, ScheduleBody

SAMPLE_STEP = 1_000_000
"""Targets are checked with this step; each run checks again with its own."""


def check_schedule(
    scheduling: Scheduling, caller: Caller, name: str, body: ScheduleBody, now: float
) -> None:
    """Raises ProblemError for a schedule that no run could carry out."""
    when = body.when
    if isinstance(when, Clock):
        check_cron(when.cron, now)
    if body.delta is not None:
        check_versions(body)
    known = OF_CLOCK if isinstance(when, Clock) else OF_STEPS
    known = OF_VERSIONS if body.delta is not None else known
    for i, requested in enumerate(body.targets):
        check_template(requested.target, known, f"/targets/{i}/target")
        if not isinstance(when, Clock):
            _check_outside(requested.target, when.directory, f"/targets/{i}/target")
    _check_sample(scheduling, caller, name, body, now)
    for i, requested in enumerate(body.targets):
        field = f"/targets/{i}/target"
        _check_distinct(requested.target, body, field, overwrite=requested.overwrite)
        name, *names = requested.target.split("/")
        if is_in_hub(root := str(scheduling.roots.place_of(name))):
            place = parse_hub(hub_url(root, tuple(names)))
            _check_on_hub(body, requested.target, place, field)


def first_look(body: ScheduleBody, now: float) -> float:
    """The time of a new schedule's first look."""
    return next_tick(body.when.cron, now) if isinstance(body.when, Clock) else now


def _check_sample(
    scheduling: Scheduling, caller: Caller, name: str, body: ScheduleBody, now: float
) -> None:
    step = None if isinstance(body.when, Clock) else SAMPLE_STEP
    occasions = [Occasion(source_of(body), now, step)]
    if body.delta is not None:
        full = Occasion(source_of(body), now, step, version=SAMPLE_STEP)
        occasions = [full, replace(full, old=source_of(body))]
    for occasion in occasions:
        try:
            check_job(scheduling, caller, request_of(name, body, occasion))
        except ProblemError as problem:
            problem.field = _place(problem.field, body)
            raise


def _place(field: str | None, body: ScheduleBody) -> str | None:
    """The schedule's field for a field of the sample conversion."""
    if field in ("/source", "/old", "/new"):
        return "/when/source" if isinstance(body.when, Clock) else "/when/directory"
    shared = ("/targets/", "/max_memory", "/workers", "/parts", "/engine", "/notify")
    if (field or "").lstrip("/") in DeltaForm.model_fields:
        return f"/delta{field}"
    if len(body.targets) > 1 or (field or "").startswith(shared):
        return field
    return "/targets/0" + (field or "")


def _check_distinct(template: str, body: ScheduleBody, field: str, *, overwrite: bool) -> None:
    """Each run needs its own target, unless it may overwrite the previous one."""
    if body.delta is not None:
        return
    needed = {"time"} if isinstance(body.when, Clock) else {"step", "time"}
    if overwrite or fields_of(template) & needed:
        return
    fields = " or ".join(sorted(f"{{{name}}}" for name in needed))
    raise ProblemError(
        INVALID,
        f"the target {template[:200]!r} is the same for every run, so only the first could be written; add {fields}, "
        "or let it be replaced (overwrite)",
        field,
        f"add {fields}, or let it be replaced (overwrite)",
    )


def _check_on_hub(body: ScheduleBody, template: str, place: HubAddress, field: str) -> None:
    """The hub takes no deltas, and removes whole branches only."""
    if body.delta is not None:
        detail = "the hub takes whole conversions only, but this schedule publishes versions (delta); name a folder or a bucket"
        raise ProblemError(INVALID, detail, field)
    if body.keep is not None and (place.path or place.revision == MAIN):
        raise ProblemError(
            INVALID,
            f"the target {template[:200]!r} names no branch of its own, so that keep could not remove it; name one, such as "
            f"{template.partition('/')[0]}/@step-{{step}}, or leave keep out",
            field,
        )


def _check_outside(template: str, directory: str, field: str) -> None:
    if f"{template}/".startswith(f"{directory}/"):
        raise ProblemError(
            INVALID,
            f"the target {template[:200]!r} is in the watched directory {directory[:200]!r}, where it could be mistaken "
            "for a step; choose a target outside of it",
            field,
        )


_TARGET = re.compile(r"[^/{}]+(/([^/{}]|\{name\})+)+/weight_v\{version\}")
_WHOLE = ("layout", "mesh")


def check_versions(body: ScheduleBody) -> None:
    """Raises ProblemError for a schedule whose outputs cannot be versions."""
    for field, detail in _not_versions(body):
        raise ProblemError(INVALID, detail, field)


def _not_versions(body: ScheduleBody) -> Iterator[tuple[str, str]]:
    """The fields of a schedule by which its outputs cannot be versions, each with the reason."""
    target = body.targets[0]
    if isinstance(body.when, Clock):
        yield (
            "/delta",
            (
                "delta is for the steps of a training run, but this schedule goes by the clock; give when.directory, or leave delta out"
            ),
        )
    if len(body.targets) != 1:
        yield (
            "/targets",
            (
                f"a schedule with delta publishes in one folder, but has {len(body.targets)} targets; give one target, and a schedule for each other"
            ),
        )
    if not _TARGET.fullmatch(target.target):
        yield (
            "/targets/0/target",
            (
                f"the target {target.target[:200]!r} of a schedule with delta should be a folder below a root and weight_v{{version}} in it, such as "
                "data/published/weight_v{version}"
            ),
        )
    if getattr(target, "to", None) != "safetensors":
        detail = 'versions are safetensors files; give the target "to": "safetensors"'
        yield "/targets/0/to", detail
    for name in _WHOLE:
        if getattr(target, name) is not None:
            why = f"{name} would split tensors over files, but deltas stand on whole tensors"
            yield f"/targets/0/{name}", f"{why}; leave {name} out"
    if target.overwrite:
        detail = "a version that receivers may have read is not replaced; leave overwrite out"
        yield "/targets/0/overwrite", detail
