"""``reshard plan`` and ``convert``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

import reshard
from reshard.cli.console import most_rows, say, show_view
from reshard.cli.groups import (
    Asked,
    ByServer,
    Notifying,
    Output,
    Requantized,
    Resources,
    lets_a_server,
    refuse_here,
)
from reshard.cli.options import (
    Count,
    Duration,
    Misuse,
    Rate,
    Source,
    link_of,
    machines_of,
    ray_cluster,
    usage,
)
from reshard.cli.remote import connected, convert_there, goals_there
from reshard.cli.target_options import (
    RULES,
    NamedTarget,
    check_words,
    given_options,
    library_options,
    takes_target_options,
    targets_of,
)

if TYPE_CHECKING:
    from reshard import ConversionPlan, MultiConversionPlan, MultiReport
    from reshard.conversion.plan import P


@takes_target_options(is_plan=True)
def plan(
    src: Source,
    dst: str | None = None,
    *,
    chosen: Requantized,
    resources: Resources,
    latency: Duration = None,
    bandwidth: Rate = None,
    hosts: Count = None,
    cores: Count = None,
    nic: Rate = None,
    shares: bool = False,
    by: ByServer,
    show_all: bool = False,
    as_json: bool = False,
    **given: Any,
) -> None:
    r"""Show what a conversion would do and what it would cost; moves nothing.

    For each tensor: its shards (on devices) and its chunks (in files), before and after; the strategy, tasks, bytes
    read and written. Then the total, its amplification (bytes decoded for each byte stored), and the memory. Refuses
    what convert would refuse.

    Without DST everything is planned except what depends on DST: free space, and whether something is there already.
    For buckets also the requests by kind, the bytes, and the time that they take at --latency and --bandwidth.
    With --target several times, also the bytes that are read for all targets together, and how many of them twice.
    With --hosts, --cores or --nic, also the time on such hosts, and what it waits for: processors, network, or the store's
    answers. On several hosts each file is written by one task; the plan is of that.

    With --server a server plans, and refuses what it would refuse to convert; it tells no time on hosts.

    Options:
        [DST]: Where the new checkpoint would go. Left out with --target, or for a plan that does not look at free space.
        --shares: Also show which share of each target shard's bytes was in which source shard.

    Resources:
        --latency TIME: How long a request to the bucket takes, for the expected time; reshard doctor measures it. Default: 30ms.
        --bandwidth SIZE/s: Bytes per second from or to the bucket, all requests together. Default: 150MB/s.
        --hosts N: Also estimate the time on so many hosts that share the work, and name the bottleneck.
        --cores N: Processors of each host, for that time. Default: those of this machine. Each of the --workers uses one.
        --nic SIZE/s: Bytes per second of each host's network in each direction, such as 12.5GB/s, for that time.

    By a server:
        --server URL: Let this server plan: SRC and DST are then ROOT/path on the server, and --layout and --map may also name what it
            stores. Default: the variable RESHARD_SERVER.

    Examples:
        $ reshard plan ckpt/1000 --layout serving.yaml
        $ reshard plan ckpt/1000 served --layout serving.yaml
        $ reshard plan ckpt/1000 served --layout serving.yaml --shares
        $ reshard plan ckpt/1000 served --layout serving.yaml --mesh model=4 \
          --max-memory 256MiB --select '^params/'
        $ reshard plan ckpt served --step latest --item model --mesh model=8
        $ reshard plan ckpt/1000 --map to_hf.yaml
        $ reshard plan ckpt/1000 --target serving.yaml=served --target model=8=evaluated
        $ reshard plan gs://bucket/run/1000 served --latency 30ms --bandwidth 150MB/s
        $ reshard plan ckpt/1000 served --layout serving.yaml --hosts 16 --nic 12.5GB/s
        $ reshard plan data/run/1000 data/served --layout serving.yaml \
          --server http://checkpoints:8080 --token-file token
    """
    limits = {**asdict(resources), **({} if hosts is None else {"hosts": hosts})}
    link, machines = link_of(latency, bandwidth), machines_of(hosts, cores, nic)
    asked = by.asked()
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
    chosen: Requantized,
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
    output = answer.output
    if not output.is_told("plan", found):
        show_view("plan.planned_view", found, output.show_all, answer.shares, most_rows())


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


_REPORT = "reshard.cli.views.report"
"""The module that shows the report; it imports rich, which takes some 50 ms."""


@takes_target_options()
def convert(
    src: Source,
    dst: str | None = None,
    *,
    chosen: Requantized,
    resources: Resources,
    ray: str | None = None,
    parts: Count = None,
    part: str | None = None,
    by: Notifying,
    dry_run: bool = False,
    output: Output,
    **given: Any,
) -> None:
    r"""Convert a checkpoint to another mesh, dtype, format or selection of tensors.

    Bytes stream from file to file through small buffers; DST appears whole or not at all. It has the
    format of SRC, or the one of --to. It is published only if the written bytes of every tensor have the same digest as the bytes
    read (--verify); the report shows the digests. A select, drop, rename or cast that matches nothing is an error, so
    that a typing mistake loses no weights.

    An interrupted run (killed, stopped, out of space) resumes where it stopped when the same command
    is run again. If DST is already the finished result, nothing is touched.

    With --target several times, one run makes all of them. Each target appears as soon as it is proved; the same
    command resumes those that are missing.

    Options:
        [DST]: Where the new checkpoint goes; it appears whole or not at all. Left out with --target. hf://namespace/name[@branch][/folder] is a
            model on the Hugging Face hub, which gets safetensors files by one commit.
        --dry-run: Show the plan, as reshard plan does, and convert nothing.

    Resources:
        --ray [ADDRESS]: Let every host of this Ray cluster do parts, such as 10.0.0.1:6379; --max-memory and --workers are then those of each
            part, and SRC and DST must be seen by all. Without ADDRESS: the cluster of this host, or of the variable RAY_ADDRESS.
        --parts N: The number of parts with --ray; by default six for each host, and fewer for a small conversion. With --server: let the
            hosts of the service do so many parts; by default one host does all.
        --part I/N: Do part I of N of this conversion, such as 3/16, on a host of its own; reshard commit DST makes the target appear when
            all parts are done. Every part takes the same options, --max-memory and --workers among them.

    By a server:
        --server URL: Let this server convert: SRC and DST are then ROOT/path on the server, and --layout and --map may also name what it
            stores. Ctrl-C stops watching; the conversion continues. Default: the variable RESHARD_SERVER.

    Examples:
        $ reshard convert ckpt/1000 served --layout serving.yaml
        $ reshard convert ckpt/1000 served --layout serving.yaml \
          --select '^params/' --cast float=bfloat16
        $ reshard convert ckpt/1000 served --layout serving.yaml \
          --max-memory 256MiB --verify readback
        $ reshard convert ckpt/1000 served --layout serving.yaml \
          --rename '^params/(\w+)/=model/\1/'
        $ reshard convert ckpt/1000 served --mesh model=8 --missing-axes replicate --dry-run
        $ reshard convert ckpt served --step latest --item model --mesh model=8
        $ reshard convert ckpt/1000 hf --to safetensors --select '^params/'
        $ reshard convert ckpt/1000 hf --to safetensors --map to_hf.yaml
        $ reshard convert fp8 bf16 --dequantize bfloat16 --carry
        $ reshard convert ckpt/1000 hf://my-org/my-model@step-1000 --map to_hf.yaml
        $ reshard convert ckpt/1000 --target serving.yaml=served \
          --target model=8=evaluated --cast float=bfloat16
        $ reshard convert ckpt/1000 served --layout serving.yaml --ray 10.0.0.1:6379 --parts 32
        $ reshard convert ckpt/1000 served --layout serving.yaml --part 3/16
        $ reshard convert data/run/1000 data/served --layout serving.yaml \
          --server http://checkpoints:8080 --token-file token --parts 8
    """
    from reshard.cli.progress import loading

    targets = targets_of(dst, given["layout"], given["mesh"], given["target"])
    options, several = given_options(given), bool(given["target"])
    limits = asdict(resources)
    # --ray and --part say where to convert, so that the variable RESHARD_SERVER does not.
    elsewhere = by.server is None and (ray or part)
    by = replace(by, server="") if elsewhere else by
    asked, told = by.asked(), by.there()
    _refuse_together({"--ray": ray, "--part": part, "--server": by.server})
    if parts is not None and ray is None and asked is None:
        raise Misuse(
            "--parts is the number of parts that a Ray cluster or a service does; give --ray or --server, or do each part by itself: "
            "--part 1/N to N/N"
        )
    check_words(options, [one.mesh for one in targets], is_there=asked is not None)
    if dry_run:
        _refuse_elsewhere({"--ray": ray, "--part": part})
        if by.notify:
            raise Misuse("--dry-run converts nothing that --notify could tell of; leave one out")
        show_plan(src, dst, chosen, given, limits, PlanAnswer(output, server=asked))
        return
    if asked is None:
        src, limits = chosen.of(src), {**limits, **chosen.option}
    else:
        limits |= chosen.there()
    if part is not None:
        _convert_part(src, targets, part, library_options(options), limits, output)
        return
    if not (output.as_json or output.quiet):
        for one in targets:
            _announce(src, one, given, chosen.option)
    with output.watching() as progress:
        if asked is None:
            limits["progress"] = loading(progress, _REPORT)
            with ray_cluster(ray) as executor:
                limits |= {**executor, **({} if parts is None else {"parts": parts})}
                made = _convert_here(src, targets, several, library_options(options), limits)
        else:
            wanted = {} if parts is None else {"parts": parts}
            request = {"source": src, **limits, **told, **wanted, **goals_there(targets, options)}
            made = convert_there(asked, request, progress)
    warnings = chain.from_iterable(report.warnings for report in made.reports)
    if not output.is_told("convert", made if several else made.reports[0], warnings):
        show_view("report.reports_view", made, output.show_all)


def _refuse_together(given: Mapping[str, Any]) -> None:
    """Refuses options that exclude each other."""
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise Misuse(
            f"{' and '.join(names)} exclude each other: each decides where the conversion runs; leave one out"
        )


def _refuse_elsewhere(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value:
            raise Misuse(
                f"--dry-run plans what a conversion on this host would do, and {name} lets others convert; leave one out, "
                "or plan for many hosts: reshard plan --hosts N"
            )


def _convert_part(
    src: str,
    targets: Sequence[NamedTarget],
    part: str,
    options: dict[str, Any],
    limits: Mapping[str, Any],
    output: Output,
) -> None:
    """Does a part; of several targets the first part that begins records the conversion, and all do what is recorded."""
    from reshard.storage.parts import parse_part

    with usage():
        count = parse_part(part).count
    first = targets[0]
    with output.watching() as progress:
        if len(targets) == 1:
            where = {"layout": first.layout, "mesh": first.mesh, **options, **limits}
            report = reshard.convert_part(src, first.dst, part=part, progress=progress, **where)
        else:
            several = [one.target(options) for one in targets]
            reshard.begin_parts(src, several, count, **limits)
            state = options.get("state")
            report = reshard.join_part(first.dst, part, state=state, progress=progress)
    output.tell("convert", report, "report.part_view")


def _convert_here(
    src: str,
    targets: Sequence[NamedTarget],
    several: bool,
    options: dict[str, Any],
    limits: dict[str, Any],
) -> MultiReport:
    if several:
        return reshard.convert_all(src, [one.target(options) for one in targets], **limits)
    (one,) = targets
    where: dict[str, Any] = {"layout": one.layout, "mesh": one.mesh}
    report = reshard.convert(src, one.dst, **where, **options, **limits)
    return reshard.MultiReport(src, (report,), report.read_bytes, report.seconds)


def _announce(
    src: str, target: NamedTarget, given: Mapping[str, Any], of_source: Mapping[str, Any]
) -> None:
    """One line on stderr that says what will be done."""
    from reshard.cli.text import safe

    rules = (f"{kind} {rule}" for kind in RULES for rule in given[kind] or ())
    kept = "axes as in the source" if target.mesh else "layout as in the source"
    layout = f"layout {target.layout}" if target.layout else kept
    computed = ("dequantize", "lora", "quantize_like")
    values = {name: of_source[name] for name in computed if name in of_source}
    words = [
        *(
            f"{name.replace('_', '-')} {each}"
            for name, found in values.items()
            for each in (found if isinstance(found, list) else [found])
        ),
        _word(given, "map"),
        # A map makes tensors that the source has no layout for.
        layout if target.layout or not given["map"] else "",
        f"mesh {target.mesh}" if target.mesh else "",
        _word(given, "to"),
        _word(given, "files"),
        *rules,
        _word(given, "compression") if given["compression"] != "none" else "",
        _word(given, "verify"),
        _word(given, "identity"),
    ]
    say(safe(f"converting {src} → {target.dst}: {', '.join(filter(None, words))}"))


def _word(given: Mapping[str, Any], option: str) -> str:
    return f"{option} {given[option]}" if given[option] else ""
