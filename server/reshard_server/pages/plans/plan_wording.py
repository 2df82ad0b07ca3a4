"""Sentences about the changes of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reshard.surface.words import format_bytes


def resplit_text(plan: Mapping[str, Any]) -> str:
    """``34 of 48 tensors (9.50 MiB of 12.0 MiB) are split differently; the others keep their shards.``"""
    resplit, all_tensors = plan["resplit"], plan["totals"]["tensors"]
    if not resplit["tensors"]:
        return "Every tensor keeps the shards that it has in the source."
    sizes = f"{format_bytes(resplit['nbytes'])} of {format_bytes(resplit['of_nbytes'])}"
    if resplit["tensors"] == all_tensors:
        every = "The only tensor" if all_tensors == 1 else f"All {all_tensors:,} tensors"
        verb = "is" if all_tensors == 1 else "are"
        return f"{every} ({format_bytes(resplit['nbytes'])}) {verb} split differently."
    verb = "is" if resplit["tensors"] == 1 else "are"
    return (
        f"{resplit['tensors']:,} of {all_tensors:,} tensors ({sizes}) {verb} split differently; "
        "the others keep their shards."
    )


def reads_text(tensor: Mapping[str, Any], devices: int, is_mesh: bool) -> str:
    """``Each of 8 devices reads from 2 of the source's 8 shards.``

    Args:
        devices: of the target, or its shards if it has no mesh.
    """
    least, most = tensor["reads_from"]
    shards = math.prod(tensor["source_parts"])
    what = "device" if is_mesh else "shard"
    who = f"Each of {devices:,} {what}s reads" if devices > 1 else f"The only {what} reads"
    if most <= 1:
        if shards == 1:
            return f"{who} {'a part of ' if tensor['is_resplit'] else ''}the source's only shard."
        part = "a part of one" if tensor["is_resplit"] else "one"
        return f"{who} {part} of the source's {shards:,} shards."
    if most == shards and least == most:
        return f"{who} from all {shards:,} shards of the source."
    many = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{who} from {many} of the source's {shards:,} shards."
