"""``reshard plan``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

import reshard
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    ShowAll,
    Source,
    Step,
    Unlisted,
    Workers,
    examples,
    source_of,
    unlisted_option,
)
from reshard.cli.target_options import (
    check_words,
    given_options,
    library_options,
    takes_target_options,
)
from reshard.cli.targets import PlannedTarget, targets_of
from reshard.cli.time_options import Bandwidth, Cores, Hosts, Latency, Nic, link_of, machines_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reshard import ConversionPlan, MultiConversionPlan, TimePlan

EXAMPLES = examples(
    "reshard plan ckpt/1000 --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml --shares",
    "reshard plan ckpt/1000 served --layout serving.yaml --mesh model=4 \\",
    "    --max-memory 256MiB --select '^params/'",
    "reshard plan ckpt served --step latest --item model --mesh model=8",
    "reshard plan ckpt/1000 --target serving.yaml=served --target model=8=evaluated",
    "reshard plan gs://bucket/run/1000 served --latency 30ms --bandwidth 150MB/s",
    "reshard plan ckpt/1000 served --layout serving.yaml --hosts 16 --nic 12.5GB/s",
)

Shares = Annotated[
    bool,
    typer.Option(
        "--shares",
        help="Also show which share of each target shard's bytes was in which source shard.",
    ),
]


@takes_target_options(is_plan=True)
def plan(
    src: Source,
    dst: PlannedTarget = None,
    step: Step = None,
    item: Item = None,
    unlisted: Unlisted = "leave",
    max_memory: MaxMemory = None,
    workers: Workers = None,
    latency: Latency = None,
    bandwidth: Bandwidth = None,
    hosts: Hosts = None,
    cores: Cores = None,
    nic: Nic = None,
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
    With --hosts, --cores or --nic, also the time on such hosts, and what it waits for: processors, network, or the store's
    answers. On several hosts each file is written by one task; the plan is of that.
    """
    limits: dict[str, Any] = {
        "max_memory": max_memory,
        "workers": workers,
        **unlisted_option(unlisted),
    }
    if hosts is not None:
        limits["hosts"] = hosts
    link, machines = link_of(latency, bandwidth), machines_of(hosts, cores, nic)
    answer = PlanAnswer(show_all, as_json, shares=shares, link=link, machines=machines)
    show_plan(src, dst, (step, item), given, limits, answer)


class PlanAnswer(Struct, frozen=True):
    """What is shown of a plan, and how."""

    show_all: bool
    as_json: bool
    quiet: bool = False
    shares: bool = False
    link: Mapping[str, float] = {}
    machines: Mapping[str, int] = {}


def show_plan(
    src: str,
    dst: str | None,
    choice: tuple[str | None, str | None],
    given: Mapping[str, Any],
    limits: Mapping[str, Any],
    answer: PlanAnswer,
) -> None:
    """Plans what ``convert`` with the same words would do, and prints it; ``choice`` is the step and the item."""
    from reshard.cli.console import print_all, print_json
    from reshard.surface.answers import conversion_plan, conversion_plans

    options, layout, mesh = given_options(given), given["layout"], given["mesh"]
    goals = targets_of(dst, layout, mesh, given["target"]) if given["target"] else []
    check_words(options, [mesh, *(one.mesh for one in goals)])
    options = library_options(options)
    src = source_of(src, *choice)
    shares, show_all, link = answer.shares, answer.show_all, answer.link
    if goals:
        found = reshard.plan_all(src, [one.target(options) for one in goals], **limits)
        time = _time(found, answer.machines, link)
        if answer.as_json:
            print_json(conversion_plans(found, shares, time, **link))
        elif not answer.quiet:
            print_all(_with_costs(_joint_views(found, shares, show_all), found, time, link))
        return
    planned = reshard.plan(src, dst, layout=layout, mesh=mesh, **options, **limits)
    time = _time(planned, answer.machines, link)
    if answer.as_json:
        print_json(conversion_plan(planned, shares, time, **link))
    elif not answer.quiet:
        print_all(_with_costs(_views(planned, shares, show_all), planned, time, link))


def _time(
    found: ConversionPlan | MultiConversionPlan,
    machines: Mapping[str, int],
    link: Mapping[str, float],
) -> TimePlan | None:
    """The time on the machines that were described; None where none were."""
    if not machines:
        return None
    latency_s = link.get("latency_s", reshard.RequestPlan.LATENCY_S)
    return found.time(**machines, latency_s=latency_s)


def _joint_views(
    found: MultiConversionPlan, shares: bool, show_all: bool
) -> Iterator[RenderableType]:
    from reshard.cli.views.plan import joint_view

    said: set[str] = set()
    for planned in found.plans:
        yield from _views(planned, shares, show_all, said)
    yield from joint_view(found.total)


def _with_costs(
    views: Iterable[RenderableType],
    found: ConversionPlan | MultiConversionPlan,
    time: TimePlan | None,
    link: Mapping[str, float],
) -> Iterator[RenderableType]:
    from reshard.cli.views.costs import planned_requests, planned_time

    yield from views
    yield from planned_requests(found.requests, **link)
    yield from planned_time(time)


def _views(
    planned: ConversionPlan, shares: bool, show_all: bool, said: set[str] | None = None
) -> Iterator[RenderableType]:
    from reshard.cli.tables import most_rows
    from reshard.cli.views.plan import plan_groups, plan_view, shares_view

    yield from plan_view(planned, show_all, said, most_rows())
    if shares:
        yield from shares_view(plan_groups(planned.tensors, show_all), show_all)
