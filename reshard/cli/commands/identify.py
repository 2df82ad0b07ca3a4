"""``reshard identify``."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import Source, examples

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
    *,
    chosen: Chosen,
    write: Write = False,
    out: Out = None,
    sha256: Sha256 = False,
    resources: Resources,
    output: Output,
) -> None:
    """Show the identity of the weights: one root, whatever their mesh, chunks, codec and format.

    Reads every byte once. Two checkpoints have the same root if names, dtypes, shapes and every bit of their tensors are
    the same. Nobody can make other weights with the same root, so that the root can be published, signed (reshard sign)
    and checked (reshard verify --identity).

    fingerprint records faster checksums in a checkpoint, which find accidents, but not intent. Needs the extra identity.
    """
    src = chosen.of(src)
    with output.watching() as progress:
        found = reshard.identify(
            src, unlisted=chosen.unlisted, write=write, out=out, sha256=sha256, **asdict(resources), progress=progress
        )  # fmt: skip
    if output.is_told("identify", found, found.warnings):
        return
    from reshard.cli.views.versions import identity_view

    print_all(identity_view(found, output.show_all))
