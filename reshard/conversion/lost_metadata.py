"""Warnings about metadata beside the tensors: left out of a target, or carried though no longer true of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reshard.answers.record import counted
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.contents import ARRAY_TYPES
from reshard.formats.known_formats import known_format

_SHOWN = 3

_COUNT = "total_parameters"
"""The member of an index in which transformers writes how many elements the tensors have."""


def lost_metadata(reader: Reader, target: TargetCheckpoint) -> Iterator[str]:
    """One sentence each for metadata that is left out, or carried though tensors have other names, bits or sizes now."""
    kept = reader.metadata
    yield from kept.left_out
    if reader.format != target.form.format:
        yield from _of_other_format(reader, target)
    if kept.header and (stale := _stale(reader, target)):
        more = f" and {len(stale) - _SHOWN:,} more" if len(stale) > _SHOWN else ""
        yield (
            f"{counted(len(stale), 'text')} of the metadata beside the tensors may name tensors that get other names or bits, or are left "
            f"out, and {'are' if stale[1:] else 'is'} carried unchanged: {', '.join(repr(key[:80]) for key in stale[:_SHOWN])}{more}; correct "
            "what the programs that read it look for"
        )
    if _COUNT in kept.index:
        before = sum(math.prod(tensor.spec.shape) for tensor in reader.tensors.values())
        after = sum(math.prod(tensor.spec.shape) for tensor in target.tensors.values())
        if before != after:
            yield (
                f"{_COUNT} of the index is carried unchanged, {kept.index[_COUNT][:40]}, but the source has {before:,} elements, and the target "
                f"{after:,}"
            )


def _of_other_format(reader: Reader, target: TargetCheckpoint) -> Iterator[str]:
    """Items that are no trees, and types by which Orbax finds the handlers of a program: only Orbax has a place for them."""
    if target.copied:
        title = known_format(target.form.format).about.title
        yield (
            f"the items {', '.join(sorted(target.copied))} are no trees of tensors, so a {title} target leaves them out"
        )
    types = {leaf.value_type: leaf.name for leaf in reader.leaves if leaf.tensor}
    own = [kind for kind in types if kind and kind not in ARRAY_TYPES]
    if own:
        more = f" and {counted(len(own) - 1, 'more type')}" if own[1:] else ""
        yield (
            f"the value type {own[0][:80]!r} (of {types[own[0]][:200]!r}){more} is left out: the target has plain arrays"
        )


def _stale(reader: Reader, target: TargetCheckpoint) -> list[str]:
    """The keys of the texts that may describe tensors that changed.

    A text is about a tensor whose name is its key or itself: an alias of tied tensors names the one that was kept. A key in the
    module of tensors is about one that its writer took apart (torchao: ``layer.weight`` for ``layer._weight_qdata``).
    """
    origins = {} if target.made is None else target.made.origins
    cast = {name for name, origin in origins.items() if origin.dtype}
    moved = {
        name
        for name in reader.tensors
        if name not in target.tensors or (name in origins and origins[name].name != name)
    }
    modules = set(map(_module, moved)) - set(map(_module, reader.tensors.keys() - moved)) - {""}
    return [
        key
        for key, text in reader.metadata.header.items()
        if key in moved or key in cast or text in moved or _module(key) in modules
    ]


def _module(name: str) -> str:
    return name.rpartition(".")[0]
