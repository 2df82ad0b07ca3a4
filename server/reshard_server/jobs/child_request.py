"""The child's request: real paths, the contents of layouts and maps, and limits within the server's settings.

It is made anew for each attempt, so that every path is checked right before it is used. A source whose files are
hard-linked for the conversion (a schedule does that) is read from the links.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa

from reshard.formats.registry import is_there
from reshard.geometry.sizes import parse_bytes
from reshard.storage.location import locate
from reshard_server.auth.root_paths import Roots
from reshard_server.db.conversions.hard_links import linked_source
from reshard_server.db.stored.kinds import KINDS, content_then
from reshard_server.schemas.conversion import (
    Conversion,
    DeltaForm,
    OneDelta,
    SeveralTargets,
    TargetRequest,
    library_options,
    targets_of,
)
from reshard_server.settings import MIB, Settings

BESIDE_BUDGET_BYTES = 2048 * MIB
BESIDE_THREAD_BYTES = 64 * MIB
"""Writable address space that the kernel allows a child besides its memory budget.

The library keeps the budget; this limit only ends a child that has gone wrong. Measured: 60 to 870 MiB, most of it
reserved by threads (stacks, heaps, codecs) and never touched.
"""


def make_child_request(
    db: sa.Engine, settings: Settings, roots: Roots, conversion: Conversion, *, begun: bool
) -> dict[str, Any]:
    """The document that the child reads from stdin.

    Args:
        begun: True if an attempt already moved data; then ``restart`` throws nothing away.

    Raises ProblemError if a path may no longer be used, LayoutError if a layout or a map no longer exists.
    """
    request = conversion.request
    source = _source(db, roots, conversion)
    budget = _budget(request.max_memory, settings)
    workers = min(request.workers or settings.workers, settings.workers)
    as_of = conversion.created_at.timestamp()
    targets = [_target(db, roots, each, as_of, begun) for each in targets_of(request)]
    if isinstance(request, OneDelta):
        work: dict[str, Any] = {"delta": _delta(roots, request)}
    else:
        deltas = getattr(request, "deltas", ())
        work = {"deltas": [str(roots.recheck(each)) for each in deltas]}
    return {
        **work,
        "source": source,
        "unlisted": request.unlisted,
        "targets": targets,
        "several": isinstance(request, SeveralTargets),
        "max_memory": budget,
        "workers": workers,
        "max_growth": settings.max_growth,
        "begun": begun,
        "data_bytes": data_bytes(budget, workers),
    }


def _source(db: sa.Engine, roots: Roots, conversion: Conversion) -> str:
    """The step's hard links if it has some, else its place."""
    links = linked_source(db, conversion.id)
    if links and is_there(locate(links)):
        return str(links)
    return str(roots.recheck(conversion.request.source))


def _delta(roots: Roots, request: OneDelta) -> dict[str, Any]:
    names = DeltaForm.model_fields.keys() | {"receiver", "base_version", "or_full"}
    return {"old": str(roots.recheck(request.old)), **request.model_dump(include=set(names))}


def data_bytes(budget: int, workers: int) -> int:
    """The address space that the kernel allows a child with this memory budget."""
    return budget + BESIDE_BUDGET_BYTES + BESIDE_THREAD_BYTES * (workers + (os.cpu_count() or 1))


def _budget(max_memory: str | int | None, settings: Settings) -> int:
    if max_memory is None:
        return settings.max_memory
    return min(parse_bytes(max_memory), settings.max_memory)


def _target(
    db: sa.Engine, roots: Roots, requested: TargetRequest, as_of: float, begun: bool
) -> dict[str, Any]:
    document = requested.model_dump(mode="json")
    document["target"] = str(roots.recheck(requested.target, target=True))
    document["restart"] = requested.restart and not begun
    if requested.config is not None:
        document["config"] = str(roots.recheck(requested.config))
    for kind in KINDS:  # the library would take a name for a path
        document[kind.noun] = content_then(db, kind, document[kind.noun], as_of)
    return library_options(document)
