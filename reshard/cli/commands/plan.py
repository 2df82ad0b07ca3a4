"""``reshard plan``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import (
    Bandwidth,
    Cores,
    Hosts,
    Json,
    Latency,
    Misuse,
    Nic,
    ShowAll,
    Source,
    examples,
    link_of,
    machines_of,
)
from reshard.cli.remote import connected, goals_there
from reshard.cli.server_options import (
    Asked,
    PlanServer,
    TokenFile,
    asked_server,
    lets_a_server,
    refuse_here,
)
from reshard.cli.target_options import (
    PlannedTarget,
    check_words,
    given_options,
    library_options,
    takes_target_options,
    targets_of,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reshard import ConversionPlan, MultiConversionPlan
    from reshard.conversion.plan import P

EXAMPLES = examples(
    "reshard plan ckpt/1000 --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml",
    "reshard plan ckpt/1000 served --layout serving.yaml --shares",
    "reshard plan ckpt/1000 served --layout serving.yaml --mesh model=4 \\",
    "    --max-memory 256MiB --select '^params/'",
    "reshard plan ckpt served --step latest --item model --mesh model=8",
    "reshard plan ckpt/1000 --map to_hf.yaml",
    "reshard plan ckpt/1000 --target serving.yaml=served --target model=8=evaluated",
    "reshard plan gs://bucket/run/1000 served --latency 30ms --bandwidth 150MB/s",
    "reshard plan ckpt/1000 served --layout serving.yaml --hosts 16 --nic 12.5GB/s",
    "reshard plan data/run/1000 data/served --layout serving.yaml \\",
    "    --server http://checkpoints:8080 --token-file token",
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
    *,
    chosen: Chosen,
    resources: Resources,
    latency: Latency = None,
    bandwidth: Bandwidth = None,
    hosts: Hosts = None,
    cores: Cores = None,
    nic: Nic = None,
    shares: Shares = False,
    server: PlanServer = None,
    token_file: TokenFile = None,
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

    With --server a server plans, and refuses what it would refuse to convert; it tells no time on hosts.
    """
    limits = asdict(resources)
    if hosts is not None:
        limits["hosts"] = hosts
    link, machines = link_of(latency, bandwidth), machines_of(hosts, cores, nic)
    asked = asked_server(server, token_file)
    if asked is not None:
        refuse_here(asked, {"--hosts": hosts, "--cores": cores, "--nic": nic})
    output = Output(show_all=show_all, as_json=as_json)
    answer = PlanAnswer(output, shares, link, machines, asked)
    show_plan(src, dst, chosen, given, limits, answer)


class PlanAnswer(Struct, frozen=True):
    """The output of a plan, its form, and the server that makes it."""

    output: Output
    shares: bool = False
    link: Mapping[str, float] = {}
    machines: Mapping[str, int] = {}
    server: Asked | None = None


def show_plan(
    src: str,
    dst: str | None,
    chosen: Chosen,
    given: Mapping[str, Any],
    limits: Mapping[str, Any],
    answer: PlanAnswer,
) -> None:
    """Plans what ``convert`` with the same words would do, and prints it."""
    options, layout, mesh = given_options(given), given["layout"], given["mesh"]
    goals = targets_of(dst, layout, mesh, given["target"]) if given["target"] else []
    meshes = [mesh, *(one.mesh for one in goals)]
    check_words(options, meshes, is_there=answer.server is not None)
    if answer.server is not None:
        if dst is None and not goals:
            raise Misuse(
                f"a plan without DST is made on this host{lets_a_server(answer.server, 'give DST')}"
            )
        goals = goals or targets_of(dst, layout, mesh, None)
        wanted = {**chosen.there(), **limits, **answer.link, "shares": answer.shares or None}
        found = _plan_there(answer.server, src, goals_there(goals, options), wanted)
    else:
        src, options = chosen.of(src), library_options(options)
        limits = {**limits, **chosen.option}
        if goals:
            several = [one.target(options) for one in goals]
            found = _as_asked(reshard.plan_all(src, several, **limits), answer)
        else:
            where = {"layout": layout, "mesh": mesh, **options, **limits}
            found = _as_asked(reshard.plan(src, dst, **where), answer)
    if not answer.output.is_told("plan", found):
        print_all(_views(found, answer))


def _as_asked(found: P, answer: PlanAnswer) -> P:
    """The plan with shares, with its time on the machines, and with its requests on the link that were asked for."""
    from reshard.conversion.plan import priced

    if answer.shares:
        found = found.with_shares()
    if answer.machines:
        latency_s = answer.link.get("latency_s", reshard.RequestPlan.LATENCY_S)
        found = replace(found, timed=found.time(**answer.machines, latency_s=latency_s))
    return priced(found, found.request_plan, **answer.link) if answer.link else found


def _plan_there(
    server: Asked, source: str, goals: Mapping[str, Any], wanted: Mapping[str, Any]
) -> ConversionPlan | MultiConversionPlan:
    options = {name: value for name, value in wanted.items() if value is not None}
    with connected(server) as client:
        if "targets" in goals:
            return client.plans.create_several(source, goals["targets"], **options)
        return client.plans.create(source, **goals, **options)


def _views(
    found: ConversionPlan | MultiConversionPlan, answer: PlanAnswer
) -> Iterator[RenderableType]:
    from reshard.cli.views.costs import planned_requests, planned_time
    from reshard.cli.views.plan import joint_view

    if isinstance(found, reshard.MultiConversionPlan):
        said: set[str] = set()
        for one in found.plans:
            yield from _one_view(one, answer, said)
        yield from joint_view(found)
    else:
        yield from _one_view(found, answer)
    yield from planned_requests(found.requests)
    yield from planned_time(found.timed or None)


def _one_view(
    planned: ConversionPlan, answer: PlanAnswer, said: set[str] | None = None
) -> Iterator[RenderableType]:
    from reshard.cli.tables import most_rows
    from reshard.cli.views.plan import plan_groups, plan_view, shares_view

    show_all = answer.output.show_all
    yield from plan_view(planned, show_all, said, most_rows())
    if answer.shares:
        yield from shares_view(plan_groups(planned.tensors, show_all), show_all)
