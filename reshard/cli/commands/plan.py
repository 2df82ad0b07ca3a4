"""``reshard plan``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshard.cli.options import (
    Cast,
    ChunkBytes,
    Compression,
    Drop,
    Item,
    Json,
    Layout,
    MaxMemory,
    Mesh,
    MissingAxes,
    Ocdbt,
    Overwrite,
    Rename,
    Select,
    ShowAll,
    Source,
    Step,
    Style,
    Workers,
    casts,
    examples,
    renames,
    source_of,
)
from reshard.cli.targets import PlannedTarget, Targets, targets_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reshard.conversion.plan import ConversionPlan, MultiConversionPlan

EXAMPLES = examples(
    "reshard plan ckpt/1000 --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml --shares",
    "reshard plan ckpt/1000 served --layout serving.yaml --mesh model=4 \\",
    "    --max-memory 256MiB --select '^params/'",
    "reshard plan ckpt served --step latest --item model --mesh model=8",
    "reshard plan ckpt/1000 --target serving.yaml=served --target model=8=evaluated",
)

Shares = Annotated[
    bool,
    typer.Option("--shares", help="Also show what share of each target shard's bytes lay where."),
]


def plan(
    src: Source,
    dst: PlannedTarget = None,
    step: Step = None,
    item: Item = None,
    layout: Layout = None,
    mesh: Mesh = None,
    missing_axes: MissingAxes = "error",
    target: Targets = None,
    select: Select = None,
    drop: Drop = None,
    rename: Rename = None,
    cast: Cast = None,
    compression: Compression = "none",
    chunk_bytes: ChunkBytes = None,
    ocdbt: Ocdbt = False,
    style: Style = None,
    overwrite: Overwrite = False,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    shares: Shares = False,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Show what a conversion would do and what it would cost; moves nothing.

    For each tensor: its shards (what each device holds) and its chunks (how files store it), before
    and after; the strategy, tasks, bytes read and written. Then the total, its amplification (bytes
    decoded for each byte stored), and the memory. Refuses what convert would refuse.

    Without DST everything is planned but what depends on it: free space, and whether something is
    there already. With --target several times, also what is read for all targets together, and how
    much of it again.
    """
    import reshard.api
    from reshard.cli.console import print_all
    from reshard.cli.json_output import conversion_plan, conversion_plans, print_json

    options: dict[str, Any] = {
        "select": select or (),
        "drop": drop or (),
        "rename": renames(rename),
        "cast": casts(cast),
        "compression": compression,
        "chunk_bytes": chunk_bytes,
        "ocdbt": ocdbt,
        "style": style,
        "overwrite": overwrite,
        "missing_axes": missing_axes,
    }
    limits: dict[str, Any] = {"max_memory": max_memory, "workers": workers}
    src = source_of(src, step, item)
    if target is not None:
        goals = [one.target(options) for one in targets_of(dst, layout, mesh, target)]
        found = reshard.api.plan_all(src, goals, **limits)
        if as_json:
            print_json(conversion_plans(found, with_shares=shares))
        else:
            print_all(_joint_views(found, shares, show_all))
        return
    planned = reshard.api.plan(src, dst, layout=layout, mesh=mesh, **options, **limits)
    if as_json:
        print_json(conversion_plan(planned, with_shares=shares))
    else:
        print_all(_views(planned, shares, show_all))


def _joint_views(
    found: MultiConversionPlan, shares: bool, show_all: bool
) -> Iterator[RenderableType]:
    from reshard.cli.views.plan import joint_view

    said: set[str] = set()
    for planned in found.plans:
        yield from _views(planned, shares, show_all, said)
    yield from joint_view(found.total)


def _views(
    planned: ConversionPlan, shares: bool, show_all: bool, said: set[str] | None = None
) -> Iterator[RenderableType]:
    from reshard.cli.views.plan import plan_groups, plan_view
    from reshard.cli.views.shares import shares_view

    yield from plan_view(planned, show_all, said)
    if shares:
        yield from shares_view(plan_groups(planned.tensors, show_all), show_all)
