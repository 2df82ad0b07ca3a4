"""``reshard convert``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reshard.cli.options import (
    OUTPUT,
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
    Restart,
    Select,
    Server,
    ShowAll,
    Source,
    Step,
    Style,
    TokenFile,
    Workers,
    casts,
    choice_there,
    examples,
    renames,
    source_of,
)
from reshard.cli.targets import NamedTarget, OptionalTarget, Targets, targets_of
from reshard.errors import ReshardError

if TYPE_CHECKING:
    from reshard.cli.progress import Watcher
    from reshard.conversion.report import ConversionReport

EXAMPLES = examples(
    "reshard convert ckpt/1000 served --layout serving.yaml",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    "    --select '^params/' --cast float=bfloat16",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    "    --max-memory 256MiB --verify readback",
    "reshard convert ckpt/1000 served --layout serving.yaml \\",
    r"    --rename '^params/(\w+)/=model/\1/'",
    "reshard convert ckpt served --step latest --item model --mesh model=8",
    "reshard convert ckpt/1000 --target serving.yaml=served \\",
    "    --target model=8=evaluated --cast float=bfloat16",
    "reshard convert data/run/1000 data/served --layout serving.yaml \\",
    "    --server http://checkpoints:8080 --token-file token",
)

_REPORT = "reshard.cli.views.report"
"""What shows the report; it brings rich, which takes some 50 ms to load."""

Verify = Annotated[
    Literal["written", "readback"],
    typer.Option(
        help="written: for each tensor, the digest of what was read equals the digest of what was handed to the "
        "file system, each piece in its place; chunks that are copied encoded are checked by their CRC32C. "
        "readback: the output is also read again from storage, and compared with that; only then is it proved.",
        rich_help_panel=OUTPUT,
    ),
]


def convert(
    src: Source,
    dst: OptionalTarget = None,
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
    verify: Verify = "written",
    overwrite: Overwrite = False,
    restart: Restart = False,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    server: Server = None,
    token_file: TokenFile = None,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to another mesh, dtype or selection of tensors.

    Bytes stream from file to file through small buffers; DST appears whole or not at all, and
    stock Orbax restores it. It is published only if what was written has the digest of what was
    read, tensor by tensor (--verify); the report tells the digests. A select, drop, rename or cast
    that matches nothing is an error, so that a slip loses no weights.

    An interrupted run (killed, stopped, out of space) resumes where it stopped when the same command
    is run again. Where DST is the finished result already, nothing is touched.

    With --target several times, one run makes all of them. Each appears by itself once it is proven,
    one after the other; the same command resumes those that are missing.
    """
    from reshard.cli.json_output import conversion_reports, print_json
    from reshard.cli.progress import loading, watching

    targets = targets_of(dst, layout, mesh, target)
    options = {
        "select": select or [],
        "drop": drop or [],
        "rename": renames(rename),
        "cast": casts(cast),
        "compression": compression,
        "chunk_bytes": chunk_bytes,
        "ocdbt": ocdbt,
        "style": style,
        "overwrite": overwrite,
        "check": verify,
        "restart": restart,
        "missing_axes": missing_axes,
    }
    limits = {"max_memory": max_memory, "workers": workers}
    if token_file is not None and server is None:
        raise ReshardError("--token-file belongs to --server; add it, or leave it out")
    where: dict[str, Any] = {}
    if server is None:
        src = source_of(src, step, item)
    else:
        where = choice_there(step, item)
    changes = [("select", select), ("drop", drop), ("rename", rename), ("cast", cast)]
    if not as_json:
        for one in targets:
            _announce(src, one.dst, one.layout, one.mesh, changes, compression, verify)
    read_bytes: int | None
    with watching(as_json) as progress:
        if server is None:
            reports, documents, read_bytes = _convert_here(
                src, targets, target is not None, options, limits, loading(progress, _REPORT)
            )
        else:
            request = {"source": src, **where, **_asked(targets, options), **limits}
            reports, documents, read_bytes = _convert_there(server, token_file, request, progress)
            src = documents[0]["source"]
    document = documents[0] if target is None else conversion_reports(src, documents, read_bytes)
    if as_json:
        print_json(document)
        return
    from reshard.cli.console import print_all
    from reshard.cli.views.report import report_view, together_view

    said: set[str] = set()
    for report in reports:
        print_all(report_view(report, show_all, said))
    if len(reports) > 1 and read_bytes is not None:
        print_all(together_view(reports, read_bytes))


def _convert_here(
    src: str,
    targets: Sequence[NamedTarget],
    several: bool,
    options: dict[str, Any],
    limits: dict[str, Any],
    progress: Watcher | None,
) -> tuple[Sequence[ConversionReport], list[dict[str, Any]], int]:
    """The reports, as ``--json`` prints them, and what was read for all together."""
    import reshard.api
    from reshard.cli.json_output import conversion_report

    if not several:
        (one,) = targets
        where: dict[str, Any] = {"layout": one.layout, "mesh": one.mesh}
        report = reshard.api.convert(src, one.dst, **where, **options, **limits, progress=progress)
        return [report], [conversion_report(report)], report.read_bytes
    goals = [one.target(options) for one in targets]
    made = reshard.api.convert_all(src, goals, **limits, progress=progress)
    return made.reports, list(map(conversion_report, made.reports)), made.read_bytes


def _asked(targets: Sequence[NamedTarget], options: dict[str, Any]) -> dict[str, Any]:
    """The targets as the server is asked for them."""
    from reshard.cli.remote import layout_there

    # An older server knows no such member, and refuses what it does not know.
    asked = {k: v for k, v in options.items() if (k, v) != ("missing_axes", "error")}
    asked["verify"] = asked.pop("check")
    goals = [
        {"target": one.dst, "layout": layout_there(one.layout), "mesh": one.mesh, **asked}
        for one in targets
    ]
    return goals[0] if len(goals) == 1 else {"targets": goals}


def _convert_there(
    server: str, token_file: Path | None, request: dict[str, Any], progress: Watcher | None
) -> tuple[Sequence[ConversionReport], list[dict[str, Any]], int | None]:
    """As ``_convert_here``; an older server does not tell what was read."""
    from reshard.cli.remote import convert_there, report_of

    documents, read_bytes = convert_there(server, token_file, request, progress)
    return list(map(report_of, documents)), documents, read_bytes


def _announce(
    src: str,
    dst: str,
    layout: str | None,
    mesh: str | None,
    changes: Sequence[tuple[str, list[str] | None]],
    compression: str,
    verify: str,
) -> None:
    """One line on stderr that says what will be done."""
    from reshard.cli.console import say
    from reshard.cli.text import safe

    rules = (f"{kind} {rule}" for kind, given in changes for rule in given or ())
    without = "axes as in the source" if mesh else "layout as in the source"
    words = [
        f"layout {layout}" if layout else without,
        *([f"mesh {mesh}"] if mesh else []),
        *rules,
        *([f"compression {compression}"] if compression != "none" else []),
        f"verify {verify}",
    ]
    say(safe(f"converting {src} → {dst}: {', '.join(words)}"))
