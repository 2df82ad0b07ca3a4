"""Checks the request of a delta before it is accepted; neither checkpoint is read."""

from __future__ import annotations

from typing import Any

from reshard import check_arguments
from reshard.errors import PlanError, ReshardError
from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.delta.version_id import version_text
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored.kinds import LAYOUT, MAP
from reshard_server.errors.problems import problem_of
from reshard_server.jobs.check_request import (
    Checking,
    check_conversion,
    check_limits,
    check_seconds,
    content_of,
    field_of,
    for_field,
    refuse_overlap,
)
from reshard_server.schemas.conversion import JobRequest
from reshard_server.schemas.delta import OneDelta

CHECKED = ("select", "drop", "rename", "cast", "sizes", "reverse", "file_bytes")


def check_job(serving: Checking, caller: Caller, request: JobRequest) -> None:
    """Raises ProblemError for the first wrong member of a conversion's or a delta's request."""
    if isinstance(request, OneDelta):
        _check_delta(serving, caller, request)
    else:
        check_conversion(serving, caller, request)


def _check_delta(serving: Checking, caller: Caller, request: OneDelta) -> None:
    read = {"old": request.old, "new": request.new}
    places = {}
    for name, path in read.items():
        with for_field(f"/{name}"):
            places[name] = serving.roots.readable(caller, path)
    with for_field("/target"):
        target = serving.roots.writable(caller, request.target)
        for name, path in read.items():
            refuse_overlap(places[name], target, path, request.target)
        name = request.target.rpartition("/")[2]
        is_counted = request.receiver == "pull_weights"
        version = int(version_of_name(name) or 0)
        if is_counted and not version:
            raise PlanError(
                f"the target {request.target[-200:]!r} should have the name of a version from 1, weight_v and at least six digits, by which "
                "receivers find it; name it such as weight_v000007"
            )
    with for_field("/base_version"):
        base = request.base_version
        if is_counted and isinstance(base, int) and not 0 <= base < version:
            raise PlanError(
                f"base_version is {request.base_version}, but the target is the version {version_text(version)}, which stands on an earlier one; "
                "give an earlier base version, or leave it out"
            )
    ceiling = serving.settings.max_memory
    with for_field("/layout"):
        layout = content_of(serving, LAYOUT, request.layout)
        if layout is not None:
            check_arguments(layout=layout, max_memory=ceiling)
    with for_field("/map"):
        mapped = content_of(serving, MAP, request.map)
    members: dict[str, Any] = {name: getattr(request, name) for name in CHECKED}
    members = {"map": mapped, **{n: v for n, v in members.items() if v is not None}}
    try:
        check_arguments(layout=layout, max_memory=ceiling, to="safetensors", **members)
    except ReshardError as error:
        raise problem_of(error, field_of(members, "", ceiling)) from error
    check_limits(serving, request.max_memory, request.workers)
    check_seconds(serving.settings, request)
