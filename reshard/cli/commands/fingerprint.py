"""``reshard fingerprint``."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Output, Resources, StepAndItem
from reshard.cli.options import Source, examples

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
    *,
    chosen: StepAndItem,
    overwrite: Overwrite = False,
    resources: Resources,
    output: Output,
) -> None:
    """Record digests of a checkpoint in it, so that later damage is found.

    Stock Orbax stores no checksum of its data. This reads every byte once and adds a small file,
    slices.json, beside each _METADATA and at the top; nothing else is changed, and Orbax restores
    the checkpoint as before. From then on verify, convert and restore compare the bytes that they read with it. Earlier
    damage is not detected.

    These digests are fast and find accidents. Whoever changes weights on purpose can keep them: against that, reshard identify and sign
    make hashes that cannot be kept.
    """
    src = chosen.of(src)
    with output.watching() as progress:
        found = reshard.fingerprint(
            src, overwrite=overwrite, **asdict(resources), progress=progress
        )
    if output.is_told("fingerprint", found):
        return
    from reshard.cli.views.verification import fingerprint_view

    print_all(fingerprint_view(found, output.show_all))
