"""``reshard inspect``."""

from __future__ import annotations

import reshard
from reshard.cli.console import print_all, print_answer
from reshard.cli.groups import Chosen
from reshard.cli.options import Json, ShowAll, Source, examples
from reshard.cli.remote import connected
from reshard.cli.server_options import Asked, AskedServer, TokenFile, asked_server

EXAMPLES = examples(
    "reshard inspect ckpt/1000",
    "reshard inspect ckpt --step latest --item model",
    "reshard inspect ckpt/1000 --json | jq '.tensors[].name'",
    "reshard inspect data/run/1000 --server http://checkpoints:8080 --token-file token",
)


def inspect(
    src: Source,
    *,
    chosen: Chosen,
    server: AskedServer = None,
    token_file: TokenFile = None,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Show the content of a checkpoint: names, shapes, dtypes, chunks, layouts, bytes.

    Of a delta, or of a folder with versions such as weight_v000007, it shows what each stands on, its size, how much it changes, and whether
    the newest needs it; of one delta by itself also how much of each tensor.

    Reads metadata only. Tensors that differ in numbers only (layers/0, layers/1, …) share a row.
    """
    asked = asked_server(server, token_file)
    source = src if asked is not None else chosen.of(src)
    choice = chosen.there()
    try:
        if asked is None:
            found = reshard.inspect(source, unlisted=chosen.unlisted)
        else:
            with connected(asked) as client:
                found = client.checkpoints.inspect(source, **choice)
    except reshard.NotACheckpointError:
        is_chosen = asked is not None and choice  # a step or an item is none of the versions
        if is_chosen or not _showed_versions(source, asked, as_json, show_all):
            raise
        return
    if as_json:
        print_answer("inspect", found)
        return
    from reshard.cli.tables import most_rows
    from reshard.cli.views.inspection import inspection_view

    print_all(inspection_view(found, show_all, most_rows()))


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
        return True
    from reshard.cli.views.versions import versions_view

    print_all(versions_view(versions, show_all))
    return True
