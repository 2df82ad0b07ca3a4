"""``reshard plan``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reshard
from reshard.cli.link_options import Bandwidth, Latency, link_of
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    ShowAll,
    Source,
    Step,
    Workers,
    examples,
    source_of,
)
from reshard.cli.target_options import given_options, library_options, takes_target_options
from reshard.cli.targets import PlannedTarget, targets_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reshard import ConversionPlan, MultiConversionPlan, RequestPlan

EXAMPLES = examples(
    "reshard plan ckpt/1000 --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml --shares",
    "reshard plan ckpt/1000 served --layout serving.yaml --mesh model=4 \\",
    "    --max-memory 256MiB --select '^params/'",
    "reshard plan ckpt served --step latest --item model --mesh model=8",
    "reshard plan ckpt/1000 --target serving.yaml=served --target model=8=evaluated",
    "reshard plan gs://bucket/run/1000 served --latency 30ms --bandwidth 150MB/s",
)

Shares = Annotated[
    bool,
    typer.Option(
        "--shares",
        help="Also show which share of each target shard's bytes was in which source shard.",
    ),
]


@takes_target_options("verify", "restart", "state", "unsafe_commit")
def plan(
    src: Source,
    dst: PlannedTarget = None,
    step: Step = None,
    item: Item = None,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    latency: Latency = None,
    bandwidth: Bandwidth = None,
    shares: Shares = False,
    show_all: ShowAll = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Show what a conversion would do and what it would cost; moves nothing.

    For each tensor: its shards (on devices) and its chunks (in files), before and after; the strategy, tasks, bytes
    read and written. Then the total, its amplification (bytes decoded for each byte stored), and the memory. Refuses
    what convert would refuse.

    Without DST everything is planned except what depends on DST: free space, and whether something is there already.
    For buckets also the requests by kind, the bytes, and the time that they take at --latency and --bandwidth.
    With --target several times, also the bytes that are read for all targets together, and how many of them twice.
    """
    from reshard.cli.console import print_all
    from reshard.cli.json_output import conversion_plan, conversion_plans, print_json

    options = library_options(given_options(given))
    limits: dict[str, Any] = {"max_memory": max_memory, "workers": workers}
    link = link_of(latency, bandwidth)
    layout, mesh = given["layout"], given["mesh"]
    src = source_of(src, step, item)
    if given["target"]:
        goals = [one.target(options) for one in targets_of(dst, layout, mesh, given["target"])]
        found = reshard.plan_all(src, goals, **limits)
        if as_json:
            print_json(conversion_plans(found, with_shares=shares, **link))
        else:
            print_all(_joint_views(found, shares, show_all, link))
        return
    planned = reshard.plan(src, dst, layout=layout, mesh=mesh, **options, **limits)
    if as_json:
        print_json(conversion_plan(planned, with_shares=shares, **link))
    else:
        print_all(_with_requests(_views(planned, shares, show_all), planned.requests, link))


def _joint_views(
    found: MultiConversionPlan, shares: bool, show_all: bool, link: Mapping[str, float]
) -> Iterator[RenderableType]:
    from reshard.cli.views.plan import joint_view

    said: set[str] = set()
    for planned in found.plans:
        yield from _views(planned, shares, show_all, said)
    yield from _with_requests(joint_view(found.total), found.requests, link)


def _with_requests(
    views: Iterable[RenderableType], requests: RequestPlan | None, link: Mapping[str, float]
) -> Iterator[RenderableType]:
    from reshard.cli.views.requests import planned_requests

    yield from views
    yield from planned_requests(requests, **link)


def _views(
    planned: ConversionPlan, shares: bool, show_all: bool, said: set[str] | None = None
) -> Iterator[RenderableType]:
    from reshard.cli.views.plan import plan_groups, plan_view
    from reshard.cli.views.shares import shares_view

    yield from plan_view(planned, show_all, said)
    if shares:
        yield from shares_view(plan_groups(planned.tensors, show_all), show_all)
