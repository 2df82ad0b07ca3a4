"""``reshard layout``."""

from __future__ import annotations

from typing import Annotated

import typer

from reshard.cli.options import Json, Mesh, ShowAll, Source, examples

EXAMPLES = examples(
    "reshard layout serving.yaml ckpt/1000",
    "reshard layout serving.yaml ckpt/1000 --mesh data=4,model=2",
)

File = Annotated[str, typer.Argument(metavar="FILE", help="The layout file, YAML or JSON.")]


def layout(
    file: File, src: Source, mesh: Mesh = None, show_all: ShowAll = False, as_json: Json = False
) -> None:
    """Draw what each device holds, as the checkpoint was saved and as a layout file asks.

    Tensors of one shape that are cut alike share a picture; the largest come first. Each box is a
    shard, and the numbers in it are the devices that hold it, counted row by row over the mesh.
    Reads metadata only.
    """
    import reshard.api
    from reshard.cli.json_output import layout_document, print_json

    preview = reshard.api.lay_out(src, file, mesh=mesh)
    if as_json:
        print_json(layout_document(file, src, preview))
        return
    from reshard.cli.console import stdout_console
    from reshard.cli.views.layout import show_layout

    show_layout(stdout_console(), preview, show_all)
