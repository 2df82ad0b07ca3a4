"""Merge: one checkpoint of several, with averages of their floats, as a Computation over the first of them.

The sums are made in the order of the checkpoints' paths, in whichever they are given: so they have the same bits. Tensors of no floats are
equal in all checkpoints, or taken from one of them. Formats store tied tensors once; so they are averaged once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.arithmetic.average import AverageFormula, SameFormula, unequal_text
from reshard.arithmetic.merge_sources import MergeSource, asked_sources
from reshard.arithmetic.weights import MergeWeights, check_method, merge_weights
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.formats.computed import ComputedTensor, Operand, computed_reader, computed_tensor
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.formula import Formula
from reshard.formats.known_formats import files_of
from reshard.formats.names import OF_RECORDS
from reshard.formats.quantized import quantization
from reshard.geometry.dtypes import PACKED, STORED_DTYPES, dtype_name
from reshard.geometry.grid import Grid
from reshard.layout.changes import kind_of
from reshard.storage.location import Location, locate

LEAF_BYTES = 4000
"""Memory of a tensor of a checkpoint that is opened besides, an overestimate."""


class Merge(Struct, frozen=True):
    """The average of checkpoints, or a base with what they change of it, as a Computation over the first.

    Attributes:
        sources: the first is the one over which it is computed.
        base: of task arithmetic: ``base + scale * sum(weight * (source - base))``; None for an average.
        chosen: the number, from 0, of the checkpoint that tensors of no floats are taken from; None if they must be equal in all.
        dtype: of averaged tensors; None for those of the first.
        plain: the arguments of ``reshard.merge`` as plain data, with the steps that were found.
    """

    sources: tuple[MergeSource, ...]
    weights: MergeWeights
    base: MergeSource | None = None
    scale: float = 1.0
    chosen: int | None = None
    dtype: str | None = None
    plain: Mapping[str, Any] = {}

    @classmethod
    def asked(cls, given: Mapping[str, Any]) -> Merge:
        """The members are arguments of ``reshard.merge``; PlanError for those that make no sense together, and as ``asked_sources``."""
        method = check_method(given.get("method", "linear"))
        unlisted, base, scale = given.get("unlisted", "leave"), given.get("base"), given.get("scale", 1.0)  # fmt: skip
        is_sum = method == "task-arithmetic"
        _check_base(base, scale, is_sum)
        sources = asked_sources(given["sources"], given.get("last"), unlisted)
        count = len(sources)
        made = cls(
            sources,
            merge_weights(count, given.get("weights"), given.get("ema"), is_sum=is_sum),
            None if base is None else MergeSource.asked(base, unlisted),
            float(scale),
            _checked_number(given.get("from_"), count),
            _checked_dtype(given.get("dtype")),
        )
        plain = {name: given[name] for name in ("weights", "ema", "method", "scale", "from_", "unlisted")
                 if given.get(name) is not None}  # fmt: skip
        if not isinstance(plain.get("weights", ""), str):
            plain["weights"] = list(made.weights.values)
        plain |= {"sources": [each.plain for each in sources]}
        plain |= {} if made.base is None else {"base": made.base.plain}
        plain |= {} if made.dtype is None else {"dtype": made.dtype}
        return replace(made, plain=plain)

    @property
    def option(self) -> tuple[str, Mapping[str, Any]]:
        return "merge", self.plain

    @property
    def text(self) -> str:
        return json.dumps(self.plain, sort_keys=True)

    @property
    def tensor_bytes(self) -> int:
        return LEAF_BYTES * len(self._others) + 2000

    @property
    def _others(self) -> tuple[MergeSource, ...]:
        return (*self.sources[1:], *([] if self.base is None else [self.base]))

    def state(self) -> Iterator[str]:
        for each in self._others:
            place = locate(each.path).remembered()
            for file in files_of(place) or (place,):
                yield from file.state(OF_RECORDS)

    def applied(self, base: Reader, root: Location) -> Reader:
        """The merged checkpoint, with names, leaves and dtypes of the first.

        Raises PlanError for checkpoints with other names or shapes, and for quantised weights.
        """
        del root
        first, count = self.sources[0].mapped(base), len(self.sources)
        readers = [first, *(each.opened() for each in self._others)]
        for reader in readers:
            _refuse_codes(reader)
            _refuse_unlike(first, reader)
        merging = _Merging(self, readers, [json.dumps(each.plain) for each in self.sources])
        made = {name: merging.tensor(name) for name in first.tensors}
        computed = {name: tensor for name, tensor in made.items() if tensor is not None}
        found = computed_reader(first, computed)
        return replace(
            found,
            leaves=list(_leaves(readers[:count], self.chosen)),
            metadata_bytes=found.metadata_bytes + sum(r.metadata_bytes for r in readers[1:]),
            warnings=tuple(dict.fromkeys(w for reader in readers for w in reader.warnings)),
        )


class _Merging(Struct, frozen=True):
    """Open checkpoints that are merged: the sources, whose places are ``texts``, then the base if there is one."""

    how: Merge
    readers: Sequence[Reader]
    texts: Sequence[str]

    def tensor(self, name: str) -> ComputedTensor | None:
        """A tensor of the result; None for that of the first, as it is."""
        how, readers, stored = self.how, self.readers, self.readers[0].tensors[name]
        if is_averaged(stored.spec.dtype):
            is_kept = len(readers) == 1 and how.dtype in (None, stored.spec.dtype)
            return None if is_kept else self._averaged(stored)
        if how.chosen is not None:
            readers = [readers[how.chosen]]
        if len(readers) == 1 and readers[0] is self.readers[0]:
            return None
        formula = SameFormula(name, tuple(reader.uri for reader in readers))
        return _made(readers[0].tensors[name], formula, readers)

    def _averaged(self, stored: StoredTensor) -> ComputedTensor:
        how, values = self.how, self.how.weights.values
        order = sorted(range(len(values)), key=lambda i: (self.texts[i], values[i]))
        sorted_values = tuple(values[i] for i in order)
        has_base = how.base is not None
        formula = AverageFormula(sorted_values, how.weights.divisor, has_base, how.scale)
        readers = [*self.readers[len(values) :], *(self.readers[i] for i in order)]
        return _made(stored, formula, readers, how.dtype)


def _made(
    stored: StoredTensor, formula: Formula, readers: Sequence[Reader], dtype: str | None = None
) -> ComputedTensor:
    """A tensor like ``stored``, in chunks that part none of its operands'."""
    operands = [Operand.of(reader, stored.spec.name) for reader in readers]
    storage = reduce(Grid.common, (each.stored.spec.storage for each in operands))
    dtype = dtype or stored.spec.dtype
    spec = replace(stored.spec, dtype=dtype, storage=storage, chunk_shape=None)
    made = computed_tensor(spec, formula, operands)
    kept = replace(made.stored, is_key=stored.is_key, partition=stored.partition)
    return replace(made, stored=kept)


def is_averaged(dtype: str) -> bool:
    """True for floats; scales that are powers of two are none."""
    return dtype not in PACKED and kind_of(dtype) == "float" and "e8m0" not in dtype


def _check_base(base: Any, scale: Any, is_sum: bool) -> None:
    if is_sum and base is None:
        raise PlanError(
            "task-arithmetic adds to a base what the checkpoints change of it; name that (base)"
        )
    if not is_sum and (base is not None or scale != 1):
        name = "scale" if base is None else "base"
        raise PlanError(
            f"{name} is for task-arithmetic; leave it out ({name}), or name that method (method)"
        )
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not math.isfinite(scale):
        raise PlanError(f"scale is {scale!r}; expected a finite number, such as 0.5")


def _checked_number(number: Any, count: int) -> int | None:
    """The number of a checkpoint, from 0."""
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= count:
        raise PlanError(
            f"from_ is {number!r}; expected the number of one of the {count} checkpoints, from 1 to {count}"
        )
    return number - 1


def _checked_dtype(given: Any) -> str | None:
    name = None if given is None else dtype_name(given)
    if given is not None and (name not in STORED_DTYPES or not is_averaged(name)):
        raise PlanError(
            f"dtype is {given!r}; expected that of an average, such as 'float32' or 'bfloat16'"
        )
    return name


def _refuse_codes(reader: Reader) -> None:
    found = quantization(reader)
    if found is not None and found.pairs:
        raise PlanError(
            f"{reader.uri} has quantised weights ({found.text}), and codes have no average; dequantise each checkpoint first (dequantize), and "
            "merge the results"
        )


def _refuse_unlike(first: Reader, other: Reader) -> None:
    """Raises PlanError for the first tensor that only one of two checkpoints has, or that has another shape or kind."""
    remedy = "give checkpoints of one model, or each a map that makes the same tensors of it"
    for one, two in ((first, other), (other, first)):
        for name in one.tensors:
            if name not in two.tensors:
                raise PlanError(f"tensor {name!r} is in {one.uri}, but not in {two.uri}; {remedy}")
    for name, stored in first.tensors.items():
        found = other.tensors[name]
        if _shape_and_kind(found) != _shape_and_kind(stored):
            raise PlanError(
                f"tensor {name!r} is {_shown(stored)} in {first.uri}, but {_shown(found)} in {other.uri}; {remedy}"
            )


def _shape_and_kind(stored: StoredTensor) -> tuple[Any, ...]:
    dtype = stored.spec.dtype
    return stored.spec.shape, "float" if is_averaged(dtype) else dtype, stored.is_key


def _shown(stored: StoredTensor) -> str:
    key = "a PRNG key, " if stored.is_key else ""
    return f"{key}{stored.spec.dtype} {list(stored.spec.shape)}"


def _leaves(readers: Sequence[Reader], chosen: int | None) -> Iterator[Leaf]:
    """The leaves of the result. Strings and values that are not read are equal in all, or those of the chosen checkpoint."""
    first = readers[0]
    others = [{x.name: x for x in reader.leaves if _is_text(reader, x)} for reader in readers]
    for leaf in first.leaves:
        if not _is_text(first, leaf):
            yield leaf
        elif chosen is not None:
            found = others[chosen].get(leaf.name, leaf)
            yield replace(leaf, meta={**leaf.meta, **found.meta})
        else:
            for reader, of_reader in zip(readers, others, strict=True):
                if _content(of_reader.get(leaf.name, leaf)) != _content(leaf):
                    raise PlanError(unequal_text(f"{leaf.name!r}", first.uri, reader.uri))
            yield leaf


def _is_text(reader: Reader, leaf: Leaf) -> bool:
    """True for a leaf with content in its metadata: no tensor, or a PRNG key, which is of some kind."""
    return not leaf.tensor or reader.tensors[leaf.name].is_key


def _content(leaf: Leaf) -> tuple[str, str | None, Any]:
    return leaf.kind, leaf.text, leaf.meta.get("digest")
