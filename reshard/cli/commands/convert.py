"""``reshard convert``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import Misuse, Part, Ray, Source, examples, ray_cluster, usage
from reshard.cli.remote import convert_there, goals_there
from reshard.cli.server_options import Server, TokenFile, asked_server
from reshard.cli.target_options import (
    RULES,
    NamedTarget,
    OptionalTarget,
    check_words,
    given_options,
    library_options,
    takes_target_options,
    targets_of,
)

if TYPE_CHECKING:
    from reshard import MultiReport

EXAMPLES = examples(
    "reshard convert ckpt/1000 served --layout serving.yaml",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    "    --select '^params/' --cast float=bfloat16",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    "    --max-memory 256MiB --verify readback",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    r"    --rename '^params/(\w+)/=model/\1/'",
    "reshard convert ckpt/1000 served --mesh model=8 --missing-axes replicate --dry-run",
    "reshard convert ckpt served --step latest --item model --mesh model=8",
    "reshard convert ckpt/1000 hf --to safetensors --select '^params/'",
    "reshard convert ckpt/1000 hf --to safetensors --map to_hf.yaml",
    "reshard convert ckpt/1000 --target serving.yaml=served \\",
    "    --target model=8=evaluated --cast float=bfloat16",
    "reshard convert ckpt/1000 served --layout serving.yaml --ray 10.0.0.1:6379",
    "reshard convert ckpt/1000 served --layout serving.yaml --part 3/16",
    "reshard convert data/run/1000 data/served --layout serving.yaml \\",
    "    --server http://checkpoints:8080 --token-file token",
)

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the plan, as reshard plan does, and convert nothing."),
]

_REPORT = "reshard.cli.views.report"
"""The module that shows the report; it imports rich, which takes some 50 ms."""


@takes_target_options()
def convert(
    src: Source,
    dst: OptionalTarget = None,
    *,
    chosen: Chosen,
    resources: Resources,
    ray: Ray = None,
    part: Part = None,
    server: Server = None,
    token_file: TokenFile = None,
    dry_run: DryRun = False,
    output: Output,
    **given: Any,
) -> None:
    """Convert a checkpoint to another mesh, dtype, format or selection of tensors.

    Bytes stream from file to file through small buffers; DST appears whole or not at all. It has the
    format of SRC, or the one of --to. It is published only if the written bytes of every tensor have the same digest as the bytes
    read (--verify); the report shows the digests. A select, drop, rename or cast that matches nothing is an error, so
    that a typing mistake loses no weights.

    An interrupted run (killed, stopped, out of space) resumes where it stopped when the same command
    is run again. If DST is already the finished result, nothing is touched.

    With --target several times, one run makes all of them. Each target appears as soon as it is proved; the same
    command resumes those that are missing.
    """
    from reshard.cli.progress import loading

    targets = targets_of(dst, given["layout"], given["mesh"], given["target"])
    options, several = given_options(given), bool(given["target"])
    limits = asdict(resources)
    # --ray and --part say where to convert, so that the variable RESHARD_SERVER does not.
    asked = asked_server("" if server is None and (ray or part) else server, token_file)
    _refuse_together(
        {"--ray": ray, "--part": part, "--server": server, "--target": given["target"]}
    )
    check_words(options, [one.mesh for one in targets], is_there=asked is not None)
    if dry_run:
        from reshard.cli.commands.plan import PlanAnswer, show_plan

        _refuse_elsewhere({"--ray": ray, "--part": part})
        show_plan(src, dst, chosen, given, limits, PlanAnswer(output, server=asked))
        return
    if asked is None:
        src, limits = chosen.of(src), {**limits, **chosen.option}
    else:
        limits |= chosen.there()
    if part is not None:
        _convert_part(src, targets[0], part, {**library_options(options), **limits}, output)
        return
    if not (output.as_json or output.quiet):
        for one in targets:
            _announce(src, one, given)
    with output.watching() as progress:
        if asked is None:
            limits["progress"] = loading(progress, _REPORT)
            with ray_cluster(ray) as executor:
                limits |= executor
                made = _convert_here(src, targets, several, library_options(options), limits)
        else:
            request = {"source": src, **limits, **goals_there(targets, options)}
            made = convert_there(asked, request, progress)
    warnings = chain.from_iterable(report.warnings for report in made.reports)
    if not output.is_told("convert", made if several else made.reports[0], warnings):
        _show(made, output.show_all)


def _show(made: MultiReport, show_all: bool) -> None:
    from reshard.cli.views.costs import request_report, time_report
    from reshard.cli.views.report import report_view, together_view

    said: set[str] = set()
    for report in made.reports:
        print_all(report_view(report, show_all, said))
    if len(made.reports) > 1 and made.read_bytes is not None:
        print_all(together_view(made.reports, made.read_bytes))
        print_all(time_report(made.time))
        print_all(request_report(made.requests))


def _refuse_together(given: Mapping[str, Any]) -> None:
    """Refuses options that exclude each other; several targets may go to a cluster or to a server."""
    names = [name for name, value in given.items() if value]
    if len(names) > 1 and ("--part" in names or "--target" not in names):
        raise Misuse(
            f"{' and '.join(names)} exclude each other: each decides where the conversion runs, and a part has one target; leave one out"
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
    target: NamedTarget,
    part: str,
    options: Mapping[str, Any],
    output: Output,
) -> None:
    from reshard.storage.parts import parse_part

    with usage():
        parse_part(part)
    where = {"layout": target.layout, "mesh": target.mesh, **options}
    with output.watching() as progress:
        report = reshard.convert_part(src, target.dst, part=part, progress=progress, **where)
    if output.is_told("convert", report):
        return
    from reshard.cli.views.report import part_view

    print_all(part_view(report))


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


def _announce(src: str, target: NamedTarget, given: Mapping[str, Any]) -> None:
    """One line on stderr that says what will be done."""
    from reshard.cli.console import say
    from reshard.cli.text import safe

    rules = (f"{kind} {rule}" for kind in RULES for rule in given[kind] or ())
    kept = "axes as in the source" if target.mesh else "layout as in the source"
    layout = f"layout {target.layout}" if target.layout else kept
    words = [
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
