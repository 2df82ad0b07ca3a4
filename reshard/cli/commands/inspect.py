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
from reshard.cli.server_options import AskedServer, TokenFile, asked_server, choice_there

EXAMPLES = examples(
    "reshard inspect ckpt/1000",
    "reshard inspect ckpt --step latest --item model",
    "reshard inspect ckpt/1000 --json | jq '.tensors[].name'",
    "reshard inspect data/run/1000 --server http://checkpoints:8080 --token-file token",
)


def inspect(
    src: Source,
    step: Step = None,
    item: Item = None,
    unlisted: Unlisted = "leave",
    server: AskedServer = None,
    token_file: TokenFile = None,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Show the content of a checkpoint: names, shapes, dtypes, chunks, layouts, bytes.

    Reads metadata only. Tensors that differ in numbers only (layers/0, layers/1, …) share a row.
    """
    from reshard.cli.console import print_json
    from reshard.surface.answers import answer_of, content_document

    if (asked := asked_server(server, token_file)) is not None:
        from reshard.cli.remote import inspect_there

        found = inspect_there(asked, src, choice_there(step, item, unlisted))
    else:
        found = content_document(reshard.inspect(source_of(src, step, item), unlisted=unlisted))
    if as_json:
        print_json(answer_of("inspect", found))
        return
    from reshard.cli.console import print_all
    from reshard.cli.tables import most_rows
    from reshard.cli.views.inspection import inspection_view

    print_all(inspection_view(found, show_all, most_rows()))
