"""Refuses leaves that are no tensors, for formats that hold tensors only."""

from __future__ import annotations

from reshard.errors import FormatError
from reshard.formats.base import Leaf, Reader, TargetCheckpoint

_MOST_SHOWN = 8


def refuse_others(target: TargetCheckpoint, source: Reader, files: str) -> None:
    """Raises FormatError, listing them, for strings, None, empty containers and PRNG keys.

    ``files`` names the format's files in the message, such as ``"safetensors files"``.
    """
    others = [f"{leaf.name!r} ({_kind(leaf)})" for leaf in target.leaves if not leaf.tensor]
    keys = {name for name, tensor in source.tensors.items() if tensor.is_key}
    others += [f"{leaf.name!r} (a PRNG key)" for leaf in target.leaves if leaf.name in keys]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
        raise FormatError(
            f"{files} hold tensors only, and cannot hold {', '.join(others[:_MOST_SHOWN])}{more}; leave them out "
            "(drop), or write Orbax (to)"
        )


def _kind(leaf: Leaf) -> str:
    if leaf.text is not None:
        return "a string"
    kind = leaf.value_type
    if kind in ("Dict", "List", "Tuple", "NamedTuple"):
        return f"an empty {kind.lower()}"
    return kind or "no tensor"
