"""Checks a request before it is accepted: paths, layouts, maps, arguments and limits; no checkpoint is read.

The step of a training run and the item of a checkpoint become one plain path. It is recorded and shown, so ``latest`` keeps its
meaning at the time of the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard import check_arguments, locate
from reshard.arithmetic.average import merge_weights
from reshard.errors import PlanError, ReshardError, StorageError
from reshard.formats.delta.index_values import version_text
from reshard.formats.names import version_of_name
from reshard.storage.location import Location
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.db.documents import recorded
from reshard_server.db.stored.kinds import KINDS, LAYOUT, MAP, StoredKind, is_recipe
from reshard_server.db.stored.versions import get
from reshard_server.deliveries.receivers import check_receivers
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.schemas.base import CheckpointChoice
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
    ConversionRequest,
    JobRequest,
    OneDelta,
    TargetRequest,
    library_options,
    targets_of,
)
from reshard_server.schemas.job_options import RunLimits
from reshard_server.schemas.view import OF_A_VIEW, ViewRules
from reshard_server.settings import Settings
from reshard_server.worker.wording import RootNames

_LAYOUT = ("layout", "mesh", "missing_axes")
CHECKED = tuple(name for name in TargetRequest.model_fields if name not in ("target", *_LAYOUT))
"""Members of a target that the library checks one by one."""
OF_A_NAME = ("to", "files")
"""Members that the name of the target may contradict."""
OF_A_MAP = ("sizes", "reverse")
"""Members that make no sense without a map."""


class Checking(Protocol):
    """The services that the checks need; those of the API and of the schedules both have them."""

    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> sa.Engine: ...

    @property
    def roots(self) -> Roots: ...


class MemoryAndWorkers(NamedTuple):
    """The limits of one piece of work on the host."""

    max_memory: int
    workers: int


def check_conversion(
    serving: Checking, caller: Caller, request: ConversionRequest | AnyPlanRequest
) -> None:
    """Raises ProblemError for the first wrong member, with the library's message if there is one."""
    with for_field("/source"):
        source = serving.roots.readable(caller, request.source)
    operands = {}
    for field, path in request.operands:
        with for_field(field):
            operands[path] = serving.roots.readable(caller, path)
    seen: dict[str, str] = {}
    several = hasattr(request, "targets")
    for number, requested in enumerate(targets_of(request)):
        place = f"/targets/{number}" if several else ""
        field = f"{place}/target"
        with for_field(field):
            target = serving.roots.writable(caller, requested.target)
            refuse_overlap(source, target, request.source, requested.target)
            for path, operand in operands.items():
                refuse_overlap(operand, target, path, requested.target)
        if requested.target in seen:
            raise ProblemError(
                INVALID,
                f"{seen[requested.target]} and {field} are both {requested.target!r}; give each target its own path",
                field,
            )
        seen[requested.target] = field
        _check_target(serving, caller, request, requested, place)
    check_seconds(serving.settings, request)


def refuse_overlap(source: Location, target: Location, source_name: str, target_name: str) -> None:
    """Raises StorageError for a target that is the source, in it or around it; the library would, too, when the conversion runs."""
    if target == source:
        raise StorageError(
            f"the target {target_name!r} is the source itself; choose another target"
        )
    if _is_inside(target, source):
        raise StorageError(
            f"the target {target_name!r} is inside the source {source_name!r}; choose a target outside of it"
        )
    if _is_inside(source, target):
        raise StorageError(
            f"the source {source_name!r} is inside the target {target_name!r}; choose another target"
        )


def _is_inside(place: Location, folder: Location) -> bool:
    return place != folder and f"{place}/".startswith(f"{str(folder).rstrip('/')}/")


def check_view(serving: Checking, caller: Caller, rules: ViewRules) -> dict[str, Any]:
    """The rules with the contents of the layout and the map that they name. ProblemError for the first wrong member."""
    for field, path in (("/source", rules.source), *rules.operands):
        with for_field(f"/view{field}"):
            serving.roots.readable(caller, path)
    options = {name: getattr(rules, name) for name in OF_A_VIEW}
    asked = TargetRequest.model_construct(target="view", **options)
    _check_target(serving, caller, RunLimits(max_memory=None, workers=None), asked, "/view")
    named = {kind.noun: content_of(serving, kind, options[kind.noun]) for kind in KINDS}
    return recorded(rules) | {noun: found for noun, found in named.items() if found is not None}


def _check_target(
    serving: Checking, caller: Caller, limits: RunLimits, requested: TargetRequest, place: str
) -> None:
    ceiling = serving.settings.max_memory  # given, so that the host's memory need not be looked up
    if requested.mesh is not None:
        with for_field(f"{place}/mesh"):
            check_arguments(mesh=requested.mesh, max_memory=ceiling)
    with for_field(f"{place}/layout"):
        layout = content_of(serving, LAYOUT, requested.layout)
        where = {name: getattr(requested, name) for name in _LAYOUT} | {"layout": layout}
        if layout is not None:
            check_arguments(**where, max_memory=ceiling)
    with for_field(f"{place}/map"):
        mapped = content_of(serving, MAP, requested.map)
    if requested.config is not None:
        with for_field(f"{place}/config"):
            serving.roots.readable(caller, requested.config)
    members = {name: getattr(requested, name) for name in CHECKED} | {"map": mapped}
    try:
        check_arguments(**where, max_memory=ceiling, **library_options(members))
    except ReshardError as error:
        raise problem_of(error, field_of(members, place, ceiling)) from error
    with for_field(f"{place}/target"):
        named = library_options({name: members[name] for name in OF_A_NAME})
        check_arguments(target=requested.target, max_memory=ceiling, **named)
    check_limits(serving, limits.max_memory, limits.workers)


def refuse_name(given: object, field: str, remedy: str) -> None:
    """Raises ProblemError for a name if only content is allowed; the library would take one line for the path of a file here."""
    if (name := MAP.name_in(given)) is not None:
        raise ProblemError(INVALID, f"map is {name[:100]!r}; {remedy}", field)


def field_of(members: dict[str, Any], place: str, ceiling: int) -> str | None:
    """The first member that is refused alone; the target if only several members together are wrong."""
    for name, value in members.items():
        try:
            beside = {"map": members["map"]} if name in OF_A_MAP else {}
            check_arguments(max_memory=ceiling, **library_options({**beside, name: value}))
        except ReshardError:
            return f"{place}/{name}"
    return place or None


def content_of(serving: Checking, kind: StoredKind, value: Any) -> Any:
    """The content that a member means now, or the name of a recipe.

    A name is looked up among those that are stored, since the library would take it for a path.

    Raises LayoutError for a name that is neither stored nor that of a recipe.
    """
    name = kind.name_in(value)
    if name is None:
        return value
    found = get(serving.database, kind, name)
    if found is not None:
        return found.content
    if is_recipe(kind, name):
        return name
    raise kind.not_stored(name)


def check_limits(
    serving: Checking, max_memory: str | int | None, workers: int | None = None
) -> MemoryAndWorkers:
    """The requested limits, or the server's ceilings; ProblemError for a limit above its ceiling."""
    ceilings = serving.settings
    with for_field("/max_memory"):
        limits = check_arguments(
            max_memory=ceilings.max_memory if max_memory is None else max_memory,
            workers=workers or ceilings.workers,
        )
    _check_ceiling("max_memory", limits.max_memory, ceilings.max_memory, "bytes")
    _check_ceiling("workers", limits.workers, ceilings.workers, "threads")
    return MemoryAndWorkers(limits.max_memory, limits.workers)


def check_seconds(settings: Settings, request: JobRequest | AnyPlanRequest) -> None:
    """A request may only lower the server's time limits; plans have none."""
    for name in ("run_seconds", "no_progress_seconds"):
        seconds, ceiling = getattr(request, name, None), getattr(settings, name)
        if seconds is not None and ceiling:
            _check_ceiling(name, seconds, ceiling, "seconds")


def _check_ceiling(name: str, value: float, ceiling: float, unit: str) -> None:
    if value > ceiling:
        raise ProblemError(
            INVALID,
            f"{name} is {_number(value)} {unit}, above this server's ceiling of {_number(ceiling)} (its setting {name}); ask for at most "
            "that, or leave it out",
            f"/{name}",
            "ask for at most that, or leave it out",
            {"ceiling": ceiling},
        )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


@contextmanager
def for_field(field: str | None) -> Iterator[None]:
    """Adds this field of the request to problems and library errors that are raised within."""
    try:
        yield
    except ReshardError as error:
        raise problem_of(error, field) from error
    except ProblemError as problem:
        problem.field = problem.field or field
        raise


R = TypeVar("R", bound=CheckpointChoice)


async def choose_step(limiter: CapacityLimiter, roots: Roots, caller: Caller, request: R) -> R:
    """Like ``resolve_step``, in a thread if the request names a step or an item."""
    if request.step is None and request.item is None:
        return request
    return await run_sync(resolve_step, roots, caller, request, limiter=limiter)


def resolve_step(roots: Roots, caller: Caller, request: R) -> R:
    """The request with its step and item replaced by the path that they name.

    Raises ProblemError, naming the member, if there is no such step or item.
    """
    if request.step is None and request.item is None:
        return request
    member = request.checkpoint_member
    with for_field(f"/{member}"):
        path = getattr(request, member)
        roots.existing(caller, path)
    with for_field("/step"):
        path = _below(roots, caller, path, step=request.step)
    with for_field("/item"):
        path = _below(roots, caller, path, item=request.item)
    return request.model_copy(update={member: path, "step": None, "item": None})


def _below(
    roots: Roots,
    caller: Caller,
    path: str,
    *,
    step: int | Literal["latest"] | None = None,
    item: str | None = None,
) -> str:
    if step is None and item is None:
        return path
    real = roots.existing(caller, path)
    try:
        found = roots.ask(path, lambda: locate(str(real), step=step, item=item))
    except ReshardError as error:
        root = path.partition("/")[0]
        names = RootNames.of({root: roots.place_of(root)}).before(real, path)
        raise problem_of(error).renamed(names.text) from error
    below = path + found.removeprefix(str(real))
    roots.existing(caller, below)  # a step's folder may be a link that leads out of the root
    return below


CHECKED_OF_DELTA = ("select", "drop", "rename", "cast", "sizes", "reverse", "file_bytes")


def check_job(serving: Checking, caller: Caller, request: JobRequest) -> None:
    """Raises ProblemError for the first wrong member of a conversion's or a delta's request."""
    reads_deltas = isinstance(request, OneDelta) or bool(getattr(request, "deltas", ()))
    if request.parts is not None and reads_deltas:
        raise ProblemError(
            INVALID,
            f"parts is {request.parts!r}, but a delta is made, and deltas are applied, by one process; leave parts out",
            "/parts",
        )
    if (merge := getattr(request, "merge", None)) is not None:
        for name in ("parts", "deltas", "dequantize", "lora", "quantize_like"):
            if getattr(request, name):
                raise ProblemError(
                    INVALID,
                    f"{name} and merge are both given, but checkpoints are merged by one process, as they are; leave {name} out",
                    f"/{name}",
                )
        with for_field("/merge"):
            merge_weights(len(merge.others) + 1, merge.weights, merge.ema, merge.base and 1.0)
    engines = serving.settings.engines
    if request.engine != "replicas" and getattr(engines, request.engine, None) is None:
        raise ProblemError(
            INVALID,
            f"engine is {request.engine!r}, but this server knows no such cluster; leave engine out, so that the hosts of the service do the parts, "
            f"or have the setting engines.{request.engine} made",
            "/engine",
        )
    if isinstance(request, OneDelta):
        _check_delta(serving, caller, request)
    else:
        check_conversion(serving, caller, request)
    check_receivers(serving.settings, request.notify)


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
    members: dict[str, Any] = {name: getattr(request, name) for name in CHECKED_OF_DELTA}
    members = {"map": mapped, **{n: v for n, v in members.items() if v is not None}}
    try:
        check_arguments(layout=layout, max_memory=ceiling, to="safetensors", **members)
    except ReshardError as error:
        raise problem_of(error, field_of(members, "", ceiling)) from error
    check_limits(serving, request.max_memory, request.workers)
    check_seconds(serving.settings, request)
