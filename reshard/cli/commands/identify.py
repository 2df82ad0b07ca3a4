"""``reshard identify``."""

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
    Unlisted,
    Workers,
    examples,
    source_of,
)

EXAMPLES = examples(
    "reshard identify ckpt/1000",
    "reshard identify ckpt/1000 --write",
    "reshard identify served --out identities/served",
    "reshard identify ckpt --step latest --json",
)

Write = Annotated[
    bool,
    typer.Option("--write", help="Write identity.json and identity.tree into the checkpoint."),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Write them into this folder instead."),
]
Sha256 = Annotated[
    bool,
    typer.Option(
        "--sha256",
        help="Write sha256.json beside them: the SHA-256 of each tensor's row-major bytes, by name. Reads each tensor a second time.",
    ),
]


def identify(
    src: Source,
    step: Step = None,
    item: Item = None,
    unlisted: Unlisted = "leave",
    write: Write = False,
    out: Out = None,
    sha256: Sha256 = False,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    show_all: ShowAll = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show the identity of the weights: one root, whatever their mesh, chunks, codec and format.

    Reads every byte once. Two checkpoints have the same root if names, dtypes, shapes and every bit of their tensors are
    the same. Nobody can make other weights with the same root, so that the root can be published, signed (reshard sign)
    and checked (reshard verify --identity).

    fingerprint records faster checksums in a checkpoint, which find accidents, but not intent. Needs the extra identity.
    """
    from reshard.cli.console import print_answer
    from reshard.cli.progress import watching

    src = source_of(src, step, item)
    with watching(as_json or quiet) as progress:
        found = reshard.identify(
            src, unlisted=unlisted, write=write, out=out, sha256=sha256, max_memory=max_memory,
            workers=workers, progress=progress,
        )  # fmt: skip
    if as_json:
        print_answer("identify", found)
        return
    from reshard.cli.console import print_all, warn
    from reshard.cli.views.versions import identity_view

    if quiet:
        warn(found.warnings)
        return
    print_all(identity_view(found, show_all))
