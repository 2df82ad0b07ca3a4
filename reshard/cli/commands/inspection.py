"""``reshard steps``, ``inspect`` and ``layout``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

import reshard
from reshard.cli.console import most_rows, print_answer, show_view, stdout_console
from reshard.cli.groups import Asked, ByServer, Chosen, Computed, Output
from reshard.cli.options import Misuse, Source, usage
from reshard.cli.remote import connected
from reshard.cli.target_options import declared


def steps(run: str, *, show_all: bool = False, as_json: bool = False) -> None:
    """List the steps of a training run: which are finished, how large they are, and when they were written.

    Only finished steps are read by other commands; --step latest is the last of them. A step that is not finished is being
    saved now, or its save was interrupted.

    Options:
        RUN: The folder of a training run, a path or a URL.
        --all: A row for each step, however many there are.

    Examples:
        $ reshard steps ckpt
        $ reshard steps ckpt --json | jq '.steps[-1].path'
    """
    found = reshard.inspect_run(run)
    if as_json:
        print_answer("steps", uri=run, steps=found)
    else:
        show_view("inspection.steps_view", run, found, show_all, most_rows())


def inspect(
    src: Source,
    *,
    chosen: Computed,
    by: ByServer,
    show_all: bool = False,
    as_json: bool = False,
) -> None:
    """Show the content of a checkpoint: names, shapes, dtypes, chunks, layouts, bytes.

    Of a delta, or of a folder with versions such as weight_v000007, it shows what each stands on, its size, how much it changes, and whether
    the newest needs it; of one delta by itself also how much of each tensor.

    Reads metadata only. Tensors that differ in numbers only (layers/0, layers/1, …) share a row.

    Examples:
        $ reshard inspect ckpt/1000
        $ reshard inspect ckpt --step latest --item model
        $ reshard inspect ckpt/1000 --json | jq '.tensors[].name'
        $ reshard inspect data/run/1000 --server http://checkpoints:8080 --token-file token
    """
    asked = by.asked()
    source = src if asked is not None else chosen.of(src)
    choice = chosen.there()
    try:
        if asked is None:
            found = reshard.inspect(source, **chosen.option)
        else:
            with connected(asked) as client:
                found = client.checkpoints.inspect(source, **choice)
    except reshard.NotACheckpointError:
        is_chosen = asked is not None and choice  # a step or an item is none of the versions
        if is_chosen or not _showed_versions(source, asked, as_json, show_all):
            raise
        return
    output = Output(as_json=as_json)
    output.tell("inspect", found, "inspection.inspection_view", show_all, most_rows())


def _showed_versions(source: str, asked: Asked | None, as_json: bool, show_all: bool) -> bool:
    """Shows the versions in a folder, or a delta; False where there are none."""
    try:
        if asked is None:
            versions = reshard.inspect_versions(source)
        else:
            with connected(asked) as client:
                versions = client.checkpoints.versions(source)
    except reshard.NotACheckpointError:
        return False
    if as_json:
        print_answer("inspect", uri=source, versions=versions)
    else:
        show_view("inspection.versions_view", versions, show_all)
    return True


def layout(
    words: list[str],
    *,
    layout: str | None = None,
    chosen: Chosen,
    mesh: Annotated[str | None, declared("mesh")] = None,
    missing_axes: Literal["error", "replicate"] | None = None,
    starter: bool = False,
    show_all: bool = False,
    as_json: bool = False,
) -> None:
    """Draw the part of each tensor on each device, as it was saved and as a layout file asks.

    Tensors of one shape that are cut alike share a picture; the largest come first. Each box is a
    shard, and the numbers in it are its devices, counted row by row over the mesh. Reads metadata only.

    With --starter it writes a layout file for you to change.

    Options:
        [FILE] SRC: The checkpoint to read; with --step, the folder of a training run. A layout file may be named before it instead of
            with --layout.
        --starter: Write a first layout file to stdout instead: the checkpoint's own axes as a few rules, with comments. For a --mesh that
            has other axes it proposes what comes nearest.

    Layout:
        --layout FILE: Layout file, YAML or JSON. Without it: the checkpoint's own layout, or its axes over --mesh.
        --missing-axes: Axes of the source or of the file that --mesh lacks: error, the default, refuses them; replicate replicates the
            dimensions that they split, and says which. --starter without it proposes axes of --mesh for them.

    Examples:
        $ reshard layout ckpt/1000
        $ reshard layout ckpt/1000 --layout serving.yaml
        $ reshard layout ckpt/1000 --layout serving.yaml --mesh data=4,model=2
        $ reshard layout ckpt/1000 --starter > serving.yaml
        $ reshard layout ckpt/1000 --starter --mesh model=8 > serving.yaml
    """
    file, src = _file_and_source(words, layout)
    with usage():
        reshard.check_arguments(mesh=mesh)
    src = chosen.of(src)
    if starter:
        if file is not None:
            raise Misuse(f"--starter makes a layout file, but {file!r} is given; leave one out")
        text = reshard.starter_layout(
            src, mesh=mesh, missing_axes=missing_axes, unlisted=chosen.unlisted
        )
        if as_json:
            print_answer("layout", source=src, starter=text)
        else:
            typer.echo(text, nl=False)
        return
    preview = reshard.preview_layout(
        src, file, mesh=mesh, missing_axes=missing_axes or "error", unlisted=chosen.unlisted
    )
    if as_json:
        print_answer("layout", replace(preview, file=file, source=src))
        return
    from reshard.cli.views.layout import show_layout

    is_changed = file is not None or mesh is not None
    show_layout(stdout_console(), preview, show_all, is_changed=is_changed)


def _file_and_source(words: list[str], file: str | None) -> tuple[str | None, str]:
    """``SRC`` with ``--layout`` or without, or ``FILE SRC``; a usage error for anything else."""
    if len(words) == 1:
        (src,) = words
        if file is None and Path(src).is_file() and not reshard.is_checkpoint(src):
            raise Misuse(
                f"{src!r} is a file, and no checkpoint is named; write reshard layout SRC --layout {src}"
            )
        return file, src
    first, src, *more = words
    if more:
        raise Misuse(f"{' '.join(more)!r} is one word too many; expected reshard layout [FILE] SRC")
    if file is not None:
        raise Misuse(f"both {first!r} and --layout {file!r} name a layout file; leave one out")
    if Path(first).is_dir() and not Path(src).is_dir():
        raise Misuse(
            f"{first!r} is a folder, but a layout file comes first; write reshard layout {src} {first}"
        )
    return first, src
