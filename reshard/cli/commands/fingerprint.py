"""``reshard fingerprint``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    Quiet,
    ShowAll,
    Source,
    Step,
    Workers,
    examples,
    source_of,
)

EXAMPLES = examples(
    "reshard fingerprint ckpt/1000",
    "reshard fingerprint ckpt/1000 && reshard verify ckpt/1000",
    "reshard fingerprint ckpt --step latest",
    "reshard fingerprint ckpt/1000 --overwrite",
)

Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an existing record, after the checkpoint was changed on purpose.",
    ),
]


def fingerprint(
    src: Source,
    step: Step = None,
    item: Item = None,
    overwrite: Overwrite = False,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    show_all: ShowAll = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Record digests of a checkpoint in it, so that later damage is found.

    Stock Orbax stores no checksum of its data. This reads every byte once and adds a small file,
    slices.json, beside each _METADATA and at the top; nothing else is changed, and Orbax restores
    the checkpoint as before. From then on verify, convert and restore compare the bytes that they read with it. Earlier
    damage is not detected.

    These digests are fast and find accidents. Whoever changes weights on purpose can keep them: against that, reshard identify and sign
    make hashes that cannot be kept.
    """
    from reshard.cli.console import print_answer
    from reshard.cli.progress import watching

    src = source_of(src, step, item)
    with watching(as_json or quiet) as progress:
        found = reshard.fingerprint(
            src, overwrite=overwrite, max_memory=max_memory, workers=workers, progress=progress
        )
    if as_json:
        print_answer("fingerprint", found)
        return
    if quiet:
        return
    from reshard.cli.console import print_all
    from reshard.cli.views.verification import fingerprint_view

    print_all(fingerprint_view(found, show_all))
