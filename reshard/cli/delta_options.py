"""The arguments of commands that read deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import reshard
from reshard.cli.options import Misuse

Base = Annotated[
    str,
    typer.Argument(
        metavar="BASE",
        help="The full version from which the deltas start: safetensors with whole tensors.",
    ),
]
DeltasAndTarget = Annotated[
    list[str],
    typer.Argument(
        metavar="DELTA... DST",
        help="The folder of every delta from BASE to the version that is wanted, in any order; and, last, where the full checkpoint goes.",
        show_default=False,
    ),
]
Deltas = Annotated[
    list[str] | None,
    typer.Option(
        "--delta",
        metavar="DELTA",
        help="A delta over A; give every one from A to the version that is wanted. What they make of A is verified.",
    ),
]


def is_delta(path: str) -> bool:
    """True if a delta is there; false for a path that cannot be read, which the call itself reports."""
    try:
        return [one.kind for one in reshard.inspect_versions(path)] == ["delta"]
    except reshard.ReshardError:
        return False


def split_target(words: Sequence[str]) -> tuple[list[str], str]:
    """The deltas and the target; a usage error where one of them is missing."""
    if len(words) < 2:
        raise Misuse(
            f"{words[0] if words else 'nothing'} alone was given behind BASE; expected every delta and, last, the target: reshard apply BASE "
            "weight_v000001 served"
        )
    return list(words[:-1]), words[-1]
