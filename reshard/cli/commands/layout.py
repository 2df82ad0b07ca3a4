"""``reshard layout``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

import reshard
from reshard.cli.console import print_answer, stdout_console
from reshard.cli.groups import Chosen
from reshard.cli.options import Json, Misuse, ShowAll, examples, usage
from reshard.cli.target_options import declared
from reshard.options import LAYOUT

EXAMPLES = examples(
    "reshard layout ckpt/1000",
    "reshard layout ckpt/1000 --layout serving.yaml",
    "reshard layout ckpt/1000 --layout serving.yaml --mesh data=4,model=2",
    "reshard layout ckpt/1000 --starter > serving.yaml",
    "reshard layout ckpt/1000 --starter --mesh model=8 > serving.yaml",
)

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[FILE] SRC",
        show_default=False,
        help="The checkpoint to read; with --step, the folder of a training run. A layout file may be named "
        "before it instead of with --layout.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="FILE",
        help="Layout file, YAML or JSON. Without it: the checkpoint's own layout, or its axes over --mesh.",
        rich_help_panel=LAYOUT,
    ),
]
OwnAxes = Annotated[
    Literal["error", "replicate"] | None,
    typer.Option(
        "--missing-axes",
        help="Axes of the source or of the file that --mesh lacks: error, the default, refuses them; replicate replicates "
        "the dimensions that they split, and says which. --starter without it proposes axes of --mesh for them.",
        rich_help_panel=LAYOUT,
    ),
]
Starter = Annotated[
    bool,
    typer.Option(
        "--starter",
        help="Write a first layout file to stdout instead: the checkpoint's own axes as a few rules, with comments. For a "
        "--mesh that has other axes it proposes what comes nearest.",
    ),
]


def layout(
    words: Words,
    file: File = None,
    *,
    chosen: Chosen,
    mesh: Annotated[str | None, declared("mesh")] = None,
    missing_axes: OwnAxes = None,
    starter: Starter = False,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Draw the part of each tensor on each device, as it was saved and as a layout file asks.

    Tensors of one shape that are cut alike share a picture; the largest come first. Each box is a
    shard, and the numbers in it are its devices, counted row by row over the mesh. Reads metadata only.

    With --starter it writes a layout file for you to change.
    """
    file, src = _file_and_source(words, file)
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
