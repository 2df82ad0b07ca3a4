"""``reshard inspect``."""

from __future__ import annotations

import reshard
from reshard.cli.options import (
    Item,
    Json,
    ShowAll,
    Source,
    Step,
    Unlisted,
    examples,
    source_of,
)

EXAMPLES = examples(
    "reshard inspect ckpt/1000",
    "reshard inspect ckpt --step latest --item model",
    "reshard inspect ckpt/1000 --json | jq '.tensors[].name'",
)


def inspect(
    src: Source,
    step: Step = None,
    item: Item = None,
    unlisted: Unlisted = "leave",
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Show the content of a checkpoint: names, shapes, dtypes, chunks, layouts, bytes.

    Reads metadata only. Tensors that differ in numbers only (layers/0, layers/1, …) share a row.
    """
    from reshard.cli.console import print_json
    from reshard.surface.answers import inspection

    info = reshard.inspect(source_of(src, step, item), unlisted=unlisted)
    if as_json:
        print_json(inspection(info))
        return
    from reshard.cli.console import print_all
    from reshard.cli.tables import most_rows
    from reshard.cli.views.inspection import inspection_view

    print_all(inspection_view(info, show_all, most_rows()))
