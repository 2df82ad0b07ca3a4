"""``reshard verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from reshard.cli.failures import DIFFERENT, FAILED
from reshard.cli.options import Json, MaxMemory, ShowAll, Workers, examples

EXAMPLES = examples(
    "reshard verify served",
    "reshard verify ckpt/1000 served",
    "reshard verify served && rsync -a served/ serving-host:/models/",
)

A = Annotated[str, typer.Argument(metavar="A", help="The checkpoint to verify.")]
B = Annotated[
    str | None,
    typer.Argument(
        metavar="B",
        help="The checkpoint to compare with, on any mesh and in any chunks. Without it, what is "
        "stored in A is compared with the digests that A recorded when it was written.",
    ),
]


def verify(
    a: A,
    b: B = None,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Compare two checkpoints bit by bit, or one with its own record.

    Reads every byte, and compares the digests (CRC-64/NVME) of the tensors, whatever mesh, chunks
    or compression they are stored in, and of every other file that was recorded. All damage is
    listed, tensor by tensor and file by file.

    Exit code 3 where something differs, or where a checkpoint that recorded itself is so damaged
    that it cannot be read; 1 where there is no checkpoint, or nothing was recorded that could be
    compared (then reshard fingerprint records it).
    """
    import reshard.api
    from reshard.cli.json_output import print_json, verification
    from reshard.cli.progress import watching

    with watching(as_json) as progress:
        found = reshard.api.verify(a, b, max_memory=max_memory, workers=workers, progress=progress)
    if as_json:
        print_json(verification(found))
    else:
        from reshard.cli.console import print_all
        from reshard.cli.views.verification import verification_view

        print_all(verification_view(found, show_all))
    if found.differences:
        raise typer.Exit(DIFFERENT)
    if not found.is_told:
        raise typer.Exit(FAILED)
