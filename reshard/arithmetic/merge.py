"""Merge: one checkpoint of several, with averages of their floats, as a Computation over the first of them.

The sums are made in the order of the checkpoints' paths, in whichever they are given: so they have the same bits. Tensors of no floats are
equal in all checkpoints, or taken from one of them. Formats store tied tensors once; so they are averaged once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.arithmetic.average import (
    AverageFormula,
    MergeWeights,
    SameFormula,
    merge_weights,
    unequal_text,
)
from reshard.arithmetic.merge_sources import MergeSource, asked_sources
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.formats.computed.formula import Formula
from reshard.formats.computed.tensors import (
    ComputedTensor,
    Operand,
    computed_reader,
    computed_tensor,
)
from reshard.formats.contents import Leaf, StoredTensor
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
        base: of task arithmetic: ``base + sum(weight * (source - base))``; None for an average.
        plain: the arguments of ``reshard.merge`` that were given, as plain data, with the steps that were found.
    """

    sources: tuple[MergeSource, ...]
    base: MergeSource | None
    weights: MergeWeights
    plain: Mapping[str, Any]

    @classmethod
    def asked(cls, given: Mapping[str, Any]) -> Merge:
        """The members are arguments of ``reshard.merge``; PlanError for those that make no sense together, and as ``asked_sources``."""
        plain = {name: value for name, value in given.items() if value is not None}
        unlisted, base, scale = plain.get("unlisted", "leave"), None, plain.get("scale")
        sources = asked_sources(plain["sources"], plain.pop("last", None), unlisted)
        plain["sources"] = [each.plain for each in sources]
        if "base" in plain:
            base = MergeSource.asked(plain["base"], unlisted)
            plain["base"], scale = base.plain, 1.0 if scale is None else scale
        elif scale is not None:
            raise PlanError(
                "scale is of what the checkpoints change of a base; leave it out (scale), or name that (base)"
            )
        weights = merge_weights(len(sources), plain.get("weights"), plain.get("ema"), scale)
        if not isinstance(plain.get("weights", ""), str):
            plain["weights"] = list(map(float, plain["weights"]))
        plain |= {name: float(plain[name]) for name in ("ema", "scale") if name in plain}
        if "dtype" in plain:
            plain["dtype"] = _checked_dtype(plain["dtype"])
        _check_number(plain.get("from_", 1), len(sources))
        return cls(sources, base, weights, plain)

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

    def places(self) -> Iterator[Location]:
        return (locate(each.path) for each in self._others)

    def state(self) -> Iterator[str]:
        for place in (each.remembered() for each in self.places()):
            for file in files_of(place) or (place,):
                yield from file.state(OF_RECORDS)

    def applied(self, base: Reader, root: Location) -> Reader:
        """The merged checkpoint, with names, leaves and dtypes of the first.

        Raises PlanError for checkpoints with other names or shapes, and for quantised weights.
        """
        del root
        first, number = self.sources[0].mapped(base), self.plain.get("from_")
        readers = [first, *(each.opened() for each in self._others)]
        for reader in readers:
            _refuse_codes(reader)
            _refuse_unlike(first, reader)
        chosen = readers if number is None else [readers[number - 1]]
        found = computed_reader(first, dict(self._computed(readers, chosen)))
        return replace(
            found,
            leaves=list(_leaves(first, chosen)),
            metadata_bytes=found.metadata_bytes + sum(r.metadata_bytes for r in readers[1:]),
            warnings=tuple(dict.fromkeys(w for reader in readers for w in reader.warnings)),
        )

    def _computed(
        self, readers: Sequence[Reader], chosen: Sequence[Reader]
    ) -> Iterator[tuple[str, ComputedTensor]]:
        """The tensors that are not those of the first checkpoint as they are; those of no floats are of the chosen ones."""
        first, (average, terms) = readers[0], self._average(readers)
        for name, stored in first.tensors.items():
            dtype, formula, operands = stored.spec.dtype, average, terms
            if is_averaged(dtype):
                dtype = self.plain.get("dtype", dtype)
            else:
                formula = SameFormula(name, tuple(reader.uri for reader in chosen))
                operands = chosen
            if len(operands) > 1 or operands[0] is not first or dtype != stored.spec.dtype:
                yield name, _made(stored, dtype, formula, operands)

    def _average(self, readers: Sequence[Reader]) -> tuple[Formula, Sequence[Reader]]:
        """The formula of a tensor of floats, and the checkpoints of its operands, in the order of their paths."""
        values, texts = self.weights.values, [json.dumps(each.plain) for each in self.sources]
        order = sorted(range(len(values)), key=lambda i: (texts[i], values[i]))
        weights = replace(self.weights, values=tuple(values[i] for i in order))
        formula = AverageFormula(weights, has_base=self.base is not None)
        return formula, [*readers[len(values) :], *(readers[i] for i in order)]


def _made(
    stored: StoredTensor, dtype: str, formula: Formula, readers: Sequence[Reader]
) -> ComputedTensor:
    """A tensor like ``stored``, in chunks that part none of its operands'."""
    operands = [Operand.of(reader, stored.spec.name) for reader in readers]
    storage = reduce(Grid.common, (each.stored.spec.storage for each in operands))
    spec = replace(stored.spec, dtype=dtype, storage=storage, chunk_shape=None)
    made = computed_tensor(spec, formula, operands)
    kept = replace(made.stored, is_key=stored.is_key, partition=stored.partition)
    return replace(made, stored=kept)


def is_averaged(dtype: str) -> bool:
    """True for floats; scales that are powers of two are none."""
    return dtype not in PACKED and kind_of(dtype) == "float" and "e8m0" not in dtype


def _check_number(given: Any, count: int) -> None:
    if type(given) is not int or not 1 <= given <= count:
        raise PlanError(
            f"from_ is {given!r}; expected the number of one of the {count} checkpoints, from 1 to {count}"
        )


def _checked_dtype(given: Any) -> str:
    name = dtype_name(given)
    if name not in STORED_DTYPES or not is_averaged(name):
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
    for name in {**first.tensors, **other.tensors}:
        one, two = first.tensors.get(name), other.tensors.get(name)
        if _kind(one) != _kind(two):
            raise PlanError(
                f"tensor {name!r} is {_shown(one)} in {first.uri}, but {_shown(two)} in {other.uri}; give checkpoints of one model, or each a map "
                "that makes the same tensors of it"
            )


def _kind(stored: StoredTensor | None) -> tuple[Any, ...]:
    if stored is None:
        return ()
    dtype = stored.spec.dtype
    return stored.spec.shape, is_averaged(dtype) or dtype, stored.is_key


def _shown(stored: StoredTensor | None) -> str:
    if stored is None:
        return "not"
    key = "a PRNG key, " if stored.is_key else ""
    return f"{key}{stored.spec.dtype} {list(stored.spec.shape)}"


def _leaves(first: Reader, readers: Sequence[Reader]) -> Iterator[Leaf]:
    """The leaves of the result. Strings and what is not read have the content of these checkpoints, which is equal in all of them."""
    named = [{leaf.name: leaf for leaf in reader.leaves} for reader in readers]
    for leaf in first.leaves:
        if leaf.tensor and not first.tensors[leaf.name].is_key:
            yield leaf
            continue
        found = [leaves.get(leaf.name, leaf) for leaves in named]
        for reader, other in zip(readers, found, strict=True):
            if _content(other) != _content(found[0]):
                raise PlanError(unequal_text(f"{leaf.name!r}", readers[0].uri, reader.uri))
        yield replace(leaf, meta={**leaf.meta, **found[0].meta})


def _content(leaf: Leaf) -> tuple[str, str | None, Any]:
    return leaf.kind, leaf.text, leaf.meta.get("digest")
