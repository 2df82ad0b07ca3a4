"""The questions about checkpoints that routes and pages ask: checked, with real paths, within the server's limits."""

from __future__ import annotations

from typing import Any

from anyio.to_thread import run_sync

from reshard import check_arguments
from reshard.storage.location import Location
from reshard_server.auth.tokens import Caller
from reshard_server.db.documents import page_key, page_token
from reshard_server.db.stored.kinds import KINDS, LAYOUT, MAP
from reshard_server.jobs.ask import Effort, Question
from reshard_server.jobs.check_request import (
    MemoryAndWorkers,
    check_conversion,
    check_limits,
    choose_step,
    content_of,
    for_field,
    resolve_step,
)
from reshard_server.jobs.conversion_job import data_bytes
from reshard_server.resources.browse import browse
from reshard_server.schemas.checkpoint import (
    CheckpointPage,
    CheckpointQuery,
    FingerprintRequest,
    IdentifyRequest,
    InspectRequest,
    VerifyRequest,
)
from reshard_server.schemas.conversion import (
    AnyPlanRequest,
    MultiPlanRequest,
    TargetRequest,
    paths_of,
    targets_of,
)
from reshard_server.schemas.stored import PreviewRequest
from reshard_server.services import Services

_LINK = {"latency_s", "bytes_per_s"}
"""Members of a plan's request with the speed of buckets."""

_OF_THE_RUN = {"restart", "verify"}
"""Members of a target that do not affect a plan over HTTP."""


def checkpoints_below(serving: Services, caller: Caller, query: CheckpointQuery) -> CheckpointPage:
    """A page of the checkpoints below a root or a folder. Raises ProblemError if it cannot be listed."""
    with for_field("prefix" if query.prefix else "root"):
        folder = serving.roots.folder(caller, query.root, query.prefix)
    listing = {"checkpoints": [query.root, query.prefix]}
    after: tuple[str, ...] = ()
    if query.page_token:
        (text,) = page_key(listing, query.page_token, (str,))
        after = tuple(str(text).split("/"))
    name = f"{query.root}/{query.prefix}" if query.prefix else query.root
    listed = serving.roots.ask(name, lambda: browse(folder, name, query.page_size, after))
    more = None if listed.after is None else page_token(listing, ("/".join(listed.after),))
    return CheckpointPage(checkpoints=listed.checkpoints, next_page_token=more)


def inspection(
    serving: Services, caller: Caller, checkpoint: str, command: str = "inspect", **more: Any
) -> Question:
    """The content of a checkpoint; the command ``contents`` gives a page's part of it."""
    path = existing(serving, caller, checkpoint, "/checkpoint")
    return _question(
        serving, command, {"path": str(path), **more}, {"uri": checkpoint}, (checkpoint,)
    )


def asked_inspection(serving: Services, caller: Caller, body: InspectRequest) -> Question:
    """The content of a checkpoint, with what is computed of it."""
    real = {path: existing(serving, caller, path, field) for field, path in body.operands}
    more = {"unlisted": body.unlisted, **body.computed(real.__getitem__)}
    return inspection(serving, caller, body.checkpoint, **more)


def versions(serving: Services, caller: Caller, checkpoint: str) -> Question:
    """The versions of weights in a folder, or one delta with its tensors."""
    path = existing(serving, caller, checkpoint, "checkpoint")
    return _question(serving, "versions", {"path": str(path)}, {"uri": checkpoint}, (checkpoint,))


def starter(serving: Services, caller: Caller, source: str, mesh: str | None) -> Question:
    """A layout for people to change, over the source's mesh or another one."""
    path = existing(serving, caller, source, "/source")
    with for_field("/mesh"):
        check_arguments(mesh=mesh)
    arguments = {"source": str(path), "mesh": mesh}
    return _question(serving, "starter", arguments, {"source": source}, (source,))


def preview(
    serving: Services, caller: Caller, body: PreviewRequest, command: str = "layout"
) -> Question:
    """The split of a checkpoint by a layout; the command ``layout_summary`` gives a page's part of it."""
    body = resolve_step(serving.roots, caller, body)
    path = existing(serving, caller, body.checkpoint, "/checkpoint")
    with for_field("/layout"):
        layout = content_of(serving, LAYOUT, body.layout)
        where: dict[str, Any] = {
            "layout": layout,
            "mesh": body.mesh,
            "missing_axes": body.missing_axes,
        }
        check_arguments(**where)
    name = body.layout if isinstance(body.layout, str) else ""
    return _question(
        serving,
        command,
        {"source": str(path), "unlisted": body.unlisted, **where},
        {"source": body.checkpoint, "file": name},
        (body.checkpoint,),
    )


def plan(serving: Services, caller: Caller, body: AnyPlanRequest) -> Question:
    """The plan of a conversion. Raises ProblemError if a conversion would be refused."""
    body = resolve_step(serving.roots, caller, body)
    check_conversion(serving, caller, body)
    source = existing(serving, caller, body.source, "/source")
    limits = check_limits(serving, body.max_memory, body.workers)
    arguments: dict[str, Any] = {
        "source": str(source),
        "unlisted": body.unlisted,
        **body.computed(lambda path: serving.roots.readable(caller, path)),
        **limits._asdict(),
        "max_growth": serving.settings.max_growth,
        "shares": body.shares,
        "link": body.model_dump(include=_LINK, exclude_none=True),
    }
    targets = [_target(serving, caller, requested) for requested in targets_of(body)]
    paths = paths_of(body)
    shown = {"source": body.source}
    if isinstance(body, MultiPlanRequest):
        several = {**arguments, "targets": targets}
        return _question(serving, "plans", several, shown, paths, limits)
    one = {**arguments, **targets[0]}
    return _question(serving, "plan", one, {**shown, "target": body.target}, paths, limits)


def _target(serving: Services, caller: Caller, requested: TargetRequest) -> dict[str, Any]:
    config = requested.config
    return {
        **requested.model_dump(mode="json", exclude={"target", "config", *_OF_THE_RUN}),
        "config": config if config is None else str(serving.roots.readable(caller, config)),
        "target": str(serving.roots.writable(caller, requested.target)),
        **{k.noun: content_of(serving, k, getattr(requested, k.noun)) for k in KINDS},
    }


async def verification(serving: Services, caller: Caller, body: VerifyRequest) -> Question:
    """The comparison of a checkpoint with another one, or with its own record; reads every byte."""
    body = await choose_step(serving.finders, serving.roots, caller, body)
    places = {"a": (body.checkpoint, "/checkpoint"), "b": (body.other, "/other")}
    found = {
        name: None if path is None else str(await serving.find(existing, caller, path, field))
        for name, (path, field) in places.items()
    }
    rules = _rules(serving, body)
    limits = check_limits(serving, body.max_memory)
    of_root = {"identity", "key", "name", "min_version"}
    expected = body.model_dump(include=of_root, exclude_none=True)
    real = {
        path: str(await serving.find(existing, caller, path, field))
        for field, path in body.operands
    }
    arguments = {**found, "unlisted": body.unlisted, **rules, **expected, **limits._asdict()}
    arguments |= body.computed(real.__getitem__)
    if body.deltas:
        arguments["deltas"] = [real[path] for path in body.deltas]
    shown = {"a": body.checkpoint, "b": body.other}
    paths = (body.checkpoint, body.other or "", *real)
    return _question(serving, "verify", arguments, shown, paths, limits, "read")


def _rules(serving: Services, body: VerifyRequest) -> dict[str, Any]:
    """The rules for the child. Raises ProblemError for rules that fit no checkpoint."""
    ceiling = serving.settings.max_memory
    with for_field("/map"):
        body = body.model_copy(update={"map": content_of(serving, MAP, body.map)})
    rules = body.model_dump(include={"select", "drop", "rename", "cast"}, exclude_none=True)
    mapped = body.model_dump(include={"map", "sizes", "reverse"}, exclude_defaults=True)
    for kind, given in {**rules, **mapped}.items():
        with for_field(f"/{kind}"):
            beside = {"map": body.map} if kind in mapped else {}
            check_arguments(max_memory=ceiling, **{**beside, kind: given})
    return {**rules, **mapped}


async def identity(serving: Services, caller: Caller, body: IdentifyRequest) -> Question:
    """The root of a checkpoint's weights, computed; reads every byte and writes nothing."""
    body = await choose_step(serving.finders, serving.roots, caller, body)
    path = await serving.find(existing, caller, body.checkpoint, "/checkpoint")
    limits = check_limits(serving, body.max_memory)
    arguments = {"path": str(path), "unlisted": body.unlisted, **limits._asdict()}
    shown = {"uri": body.checkpoint}
    return _question(serving, "identify", arguments, shown, (body.checkpoint,), limits, "read")


async def fingerprint(serving: Services, caller: Caller, body: FingerprintRequest) -> Question:
    """The digests of a checkpoint, recorded in it; the caller may write to its root."""
    serving.drain.refuse_new()
    body = await choose_step(serving.finders, serving.roots, caller, body)
    with for_field("/checkpoint"):
        path = await run_sync(
            serving.roots.changeable, caller, body.checkpoint, limiter=serving.finders
        )
    limits = check_limits(serving, body.max_memory)
    arguments = {"path": str(path), "overwrite": body.overwrite, **limits._asdict()}
    shown = {"uri": body.checkpoint}
    return _question(serving, "fingerprint", arguments, shown, (body.checkpoint,), limits, "read")


def existing(serving: Services, caller: Caller, text: str, field: str) -> Location:
    """The real place of a checkpoint. ProblemError, naming the field, if there is none."""
    with for_field(field):
        return serving.roots.existing(caller, text)


def _question(
    serving: Services,
    command: str,
    arguments: dict[str, Any],
    shown: dict[str, Any],
    paths: tuple[str, ...],
    limits: MemoryAndWorkers | None = None,
    effort: Effort = "look",
) -> Question:
    """A question with the client's own paths in its answer (``shown``), and the memory of its limits."""
    limits = limits or check_limits(serving, None)
    memory = data_bytes(limits.max_memory, limits.workers)
    return Question(command, arguments, memory, effort, shown, paths)
