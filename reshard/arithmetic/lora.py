"""Lora: a checkpoint with the products of an adapter's factors added to its weights, as a Computation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import path_of
from reshard.arithmetic.adapters import AdapterPath, LoraAdapter, PeftConfig, Role
from reshard.arithmetic.lora_formula import RANK, Addend, Factor, LoraFormula
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader
from reshard.formats.computed import ComputedTensor, Operand, computed_reader, computed_tensor
from reshard.formats.quantized import quantization
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.arguments import Path

WEIGHTS = ("bfloat16", "float16", "float32", "float64")
_OTHER_BASE = "give the checkpoint that the adapter was trained on, with its names (map)"


class Lora(Struct, frozen=True):
    """The adapters over a checkpoint, as a Computation; each adds to what those before it make."""

    adapters: tuple[AdapterPath, ...]

    @classmethod
    def asked(cls, values: Sequence[Path]) -> Lora:
        """From ``ADAPTER`` or ``ADAPTER=SCALE`` each. PlanError for a scale that is not finite."""
        return cls(tuple(AdapterPath.parsed(path_of("adapter", value)) for value in values))

    @property
    def option(self) -> tuple[str, list[str]]:
        scales = ("" if each.scale is None else f"={each.scale!r}" for each in self.adapters)
        return "lora", [
            str(each.root) + scale for each, scale in zip(self.adapters, scales, strict=True)
        ]

    @property
    def text(self) -> str:
        return ", ".join(each.text for each in self.adapters)

    @property
    def tensor_bytes(self) -> int:
        """Each has two factors, an addend and its places in a grid."""
        return 6000 * len(self.adapters)

    def applied(self, base: Reader, root: Location) -> Reader:
        """The base with all adapters merged.

        Raises FormatError or PlanError, naming the tensor, for an adapter that does not fit the base.
        """
        del root
        names = _BaseNames(base)
        weights: dict[str, _Weight] = {}
        kept = 0
        for path in self.adapters:
            adapter = path.open()
            kept += adapter.reader.metadata_bytes
            for name, tensor in adapter.plain.items():
                found = names.whole(adapter, name, tensor)
                weights[found] = _replaced(base, found, adapter, tensor)
            for name, change in _changes(adapter, names):
                weight = weights.get(name) or _Weight(Operand.of(base, name))
                weights[name] = replace(weight, changes=(*weight.changes, change))
        made = {name: weight.tensor(base, name) for name, weight in weights.items()}
        reader = computed_reader(base, made)
        return replace(reader, metadata_bytes=reader.metadata_bytes + kept)

    def state(self) -> Iterator[str]:
        """The state of their files."""
        return (line for each in self.adapters for line in each.root.state())


class _Change(Struct, frozen=True):
    addend: Addend
    operands: tuple[Operand, ...]


class _Weight(Struct, frozen=True, eq=False):
    """A tensor of the base, or another in its place, and what is added to it."""

    operand: Operand
    changes: tuple[_Change, ...] = ()

    def tensor(self, base: Reader, name: str) -> ComputedTensor:
        spec, own = base.tensors[name].spec, self.operand.stored.spec
        addends = tuple(change.addend for change in self.changes)
        formula = LoraFormula(spec.shape, addends, not addends and own.dtype == spec.dtype)
        cuts = [
            (0, size) if dim in formula.whole else cuts
            for dim, (size, cuts) in enumerate(zip(own.shape, own.storage.cuts, strict=True))
        ]
        spec = replace(spec, storage=Grid(spec.shape, tuple(cuts)), chunk_shape=None)
        factors = itertools.chain.from_iterable(change.operands for change in self.changes)
        return computed_tensor(spec, formula, [self.operand, *factors])


class _BaseNames:
    """The names of a base, with "." between their parts."""

    def __init__(self, base: Reader) -> None:
        self.base = base
        self._dotted = {name.replace("/", "."): name for name in base.tensors}
        self._joined = {one.replace(".", "_"): name for one, name in self._dotted.items()}

    def find(self, adapter: LoraAdapter, name: str) -> str | None:
        """The tensor that an adapter calls so; None if the base has none. Programs that write several models at once name them first."""
        found = self._dotted.get(name)
        if found is None and adapter.dialect == "diffusers":
            below = name.partition(".")[2]
            joined = name.replace(".", "_").split("_", 2)  # lora_unet_down_blocks_0…
            found = self._dotted.get(below) or self._joined.get(joined[-1] if below else "")
        return found

    def whole(self, adapter: LoraAdapter, name: str, tensor: str) -> str:
        """The same; FormatError if the base has none."""
        if (found := self.find(adapter, name)) is not None:
            return found
        self.refuse_codes(adapter, name.rpartition(".")[0])
        near = get_close_matches(name[:200], self._dotted, 1, 0.5)
        hint = f"; the nearest name is {self._dotted[near[0]]!r}" if near else ""
        raise FormatError(
            f"{adapter.place} has {tensor!r}, but {self.base.uri} has no tensor {name!r}{hint}; {_OTHER_BASE}"
        )

    def weight(self, adapter: LoraAdapter, name: str, tensor: str) -> str:
        """The same for a weight of floats; PlanError for codes."""
        found = self.whole(adapter, name, tensor)
        dtype = self.base.tensors[found].spec.dtype
        if dtype not in WEIGHTS:
            self.refuse_codes(adapter, name.rpartition(".")[0])
            raise PlanError(
                f"{found!r} of {self.base.uri} is {dtype}, but an adapter is added to weights of {', '.join(WEIGHTS)}; cast it first (cast)"
            )
        return found

    def parameters(self, module: str, wanted: Sequence[str]) -> list[str]:
        """The tensors right below a module that have the last part of a target's name."""
        lasts = [target.rpartition(".")[2] for target in wanted]
        found = (f"{module}.{last}" for last in dict.fromkeys(lasts))
        return [self._dotted[name] for name in found if name in self._dotted]

    def refuse_codes(self, adapter: LoraAdapter, module: str) -> None:
        """PlanError if the weight of a module is quantised."""
        found = quantization(self.base)
        for pair in found.pairs.values() if found else ():
            if pair.stem.replace("/", ".").rstrip("._") == module:
                raise PlanError(
                    f"{adapter.place} changes {module!r}, but {self.base.uri} holds codes for it ({pair.scheme}), to which nothing is added; make "
                    "weights of them first (dequantize)"
                )


def _replaced(base: Reader, name: str, adapter: LoraAdapter, tensor: str) -> _Weight:
    """The tensor of an adapter in the place of one of the base."""
    mine, own = adapter.reader.tensors[tensor].spec, base.tensors[name].spec
    fits = mine.dtype == own.dtype or (mine.dtype in WEIGHTS and own.dtype in WEIGHTS)
    if mine.shape != own.shape or not fits:
        raise FormatError(
            f"{adapter.place} has {tensor!r}, {mine.dtype} of shape {list(mine.shape)}, in the place of {name!r} of {base.uri}, {own.dtype} of shape "
            f"{list(own.shape)}; {_OTHER_BASE}"
        )
    return _Weight(Operand.of(adapter.reader, tensor))


def _changes(adapter: LoraAdapter, names: _BaseNames) -> Iterator[tuple[str, _Change]]:
    """All that an adapter adds, by the name of the tensor in the base."""
    wrapped: dict[str, list[_Pair]] = {}
    for module in adapter.modules:
        pair = _Pair.of(adapter, names.base, module)
        targets = pair.config.target_parameters if pair.config else None
        if adapter.dialect == "qwix":
            name = names.weight(adapter, module, pair.a.name)
            yield name, pair.change(name, _kernel_forms(names.base.tensors[name].spec.shape, pair))
        elif targets and names.find(adapter, f"{pair.bare}.weight") is None:
            wrapped.setdefault(pair.bare, []).append(pair)
        else:
            name = names.weight(adapter, f"{pair.bare}.weight", pair.a.name)
            yield name, pair.change(name, _layer_forms(pair, names.base.tensors[name].spec.shape))
            if bias := adapter.modules[module].get("bias"):
                name = names.weight(adapter, f"{pair.bare}.bias", bias)
                yield name, pair.bias(name, bias)
    for module, pairs in wrapped.items():
        yield from _parameter_changes(names, module, pairs)


_Form = tuple[str, Factor, Factor]
"""The axes of a weight, and of both factors."""


class _Pair(Struct, frozen=True, eq=False):
    """The two factors of a module."""

    adapter: LoraAdapter
    base: Reader
    module: str
    a: TensorSpec
    b: TensorSpec
    is_embedding: bool

    @classmethod
    def of(cls, adapter: LoraAdapter, base: Reader, module: str) -> _Pair:
        """FormatError where one of both is missing."""
        tensors = adapter.modules[module]
        is_embedding = bool({"embedding_a", "embedding_b"} & tensors.keys())
        first: Role
        second: Role
        first, second = ("embedding_a", "embedding_b") if is_embedding else ("a", "b")
        if missing := {first, second} - tensors.keys():
            raise FormatError(
                f"{adapter.place} has {next(iter(tensors.values()))!r}, but not the factor {min(missing)[-1].upper()} of {module!r}; restore the "
                "adapter from a copy"
            )
        a, b = (adapter.reader.tensors[tensors[role]].spec for role in (first, second))
        return cls(adapter, base, module, a, b, is_embedding)

    @property
    def bare(self) -> str:
        """The module as the base names it: peft wraps one."""
        return self.module.replace(".base_layer", "")

    @property
    def config(self) -> PeftConfig | None:
        return self.adapter.config(self.module)

    def fitting(self, name: str, forms: Iterable[tuple[int, _Form]]) -> list[tuple[int, _Form]]:
        """The forms, each with a rank, that the shapes of the factors and of a tensor of the base have."""
        shape, found = self.base.tensors[name].spec.shape, []
        for rank, form in forms:
            axes, a, b = form
            sizes = {**dict(zip(axes, shape, strict=False)), RANK: rank}
            is_fit = len(axes) == len(shape) and a.fits(self.a.shape, sizes)
            if rank > 0 and is_fit and b.fits(self.b.shape, sizes):
                found.append((rank, form))
        return found

    def change(self, name: str, forms: Iterable[tuple[int, _Form]]) -> _Change:
        """The change of the first form that fits; FormatError for none, or another rank than the config has."""
        fitting = self.fitting(name, forms)
        if not fitting:
            spec = self.base.tensors[name].spec
            raise FormatError(
                f"{self.adapter.place} has factors of shapes {list(self.a.shape)} and {list(self.b.shape)} for {self.module!r}, but {name!r} of "
                f"{self.base.uri} has the shape {list(spec.shape)}; {_OTHER_BASE}"
            )
        rank, (axes, a, b) = fitting[0]
        if (expected := self.adapter.rank(self.bare, rank)) != rank:
            raise FormatError(
                f"{self.adapter.place} has factors of the rank {rank} for {self.module!r}, but its config has {expected}; take the config that was "
                "written with these factors"
            )
        tensors = self.adapter.modules[self.module]
        alpha, magnitude = tensors.get("alpha"), tensors.get("magnitude")
        ones = ("",) * (0 if alpha is None else len(self.adapter.reader.tensors[alpha].spec.shape))
        lengths = ("o",) if len(axes) == 2 else ("", "o", *("" for _ in axes[2:]))
        addend = Addend(
            axes,
            rank,
            self.adapter.scale(self.bare, rank, alpha is not None),
            (a, b),
            None if alpha is None else Factor(ones),
            None if magnitude is None else Factor(lengths),
        )
        return self._checked(name, addend, (self.a.name, self.b.name, alpha, magnitude))

    def bias(self, name: str, bias: str) -> _Change:
        """The change to the bias of the module."""
        scale = self.adapter.scale(self.bare, self.a.shape[0], has_alpha=False)
        return self._checked(name, Addend("o", 0, scale, (Factor(("o",)),)), (bias,))

    def _checked(self, name: str, addend: Addend, tensors: Iterable[str | None]) -> _Change:
        """The change, if its tensors have shapes that fit, and floats."""
        given = [tensor for tensor in tensors if tensor is not None]
        operands = tuple(Operand.of(self.adapter.reader, one, is_held=True) for one in given)
        sizes = addend.sizes(self.base.tensors[name].spec.shape)
        for factor, operand in zip(addend.operands, operands, strict=True):
            spec = operand.stored.spec
            if spec.dtype not in WEIGHTS or not factor.fits(spec.shape, sizes):
                raise FormatError(
                    f"{self.adapter.place} has {spec.name!r}, {spec.dtype} of shape {list(spec.shape)}, which does not fit {name!r} of "
                    f"{self.base.uri}, of shape {list(self.base.tensors[name].spec.shape)}; {_OTHER_BASE}"
                )
        return _Change(addend, operands)


def _layer_forms(pair: _Pair, shape: Sequence[int]) -> Iterator[tuple[int, _Form]]:
    """A linear layer, a convolution, or an embedding, whose weight is the transpose of the product."""
    kernel = "xyz"[: max(0, len(shape) - 2)]
    factors = Factor((RANK, "i", *kernel)), Factor(("o", RANK, *("" for _ in kernel)))
    rank = pair.a.shape[0] if pair.a.shape else 0
    if pair.is_embedding or (pair.config and pair.config.fan_in_fan_out):
        yield rank, ("io", *factors)
    if not pair.is_embedding:
        # Also behind fan_in_fan_out: a model of both kinds of layers has one config for all.
        yield rank, ("oi" + kernel, *factors)


def _kernel_forms(shape: Sequence[int], pair: _Pair) -> Iterator[tuple[int, _Form]]:
    """A kernel of Qwix: factors take its axes in order, joined or not; both may have an axis of layers, at any place.

    The axis of layers of MaxText is the second one.
    """
    axes = "abcdefg"[: len(shape)]
    rank = pair.a.shape[-1] if pair.a.shape else 0
    for layers in ("", "b", "a", *axes[2:]):
        rest = axes.replace(layers, "") if layers else axes
        for cut in range(1, len(rest)):
            for first, second in itertools.product(_joined(rest[:cut]), _joined(rest[cut:])):
                for a in _with_layers((*first, RANK), layers):
                    for b in _with_layers((RANK, *second), layers):
                        yield rank, (axes, Factor(a), Factor(b))


def _joined(axes: str) -> Iterator[tuple[str, ...]]:
    """Axes as dimensions of their own, and as one."""
    yield tuple(axes)
    if len(axes) > 1:
        yield (axes,)


def _with_layers(groups: tuple[str, ...], layers: str) -> Iterator[tuple[str, ...]]:
    """The groups, and the axis of layers at each place: the second first."""
    places = sorted(range(len(groups) + 1), key=lambda at: at != 1) if layers else ()
    for at in places:
        yield (*groups[:at], layers, *groups[at:])
    if not layers:
        yield groups


def _parameter_changes(
    names: _BaseNames, module: str, pairs: Sequence[_Pair]
) -> Iterator[tuple[str, _Change]]:
    """The changes to parameters of a module, such as the experts of a layer in one tensor.

    peft wraps the module once for each parameter, and neither writes which, nor the order of their dimensions, which is one for a module:
    shapes say both.
    """
    config = pairs[0].config
    found = names.parameters(module, (config and config.target_parameters) or ())
    rank = pairs[0].adapter.rank(module, 0)
    experts = Factor((f"e{RANK}", "i")), Factor(("o", f"{RANK}e"))
    plain = rank, ("oi", Factor((RANK, "i")), Factor(("o", RANK)))
    possible: set[tuple[tuple[str, int, _Form], ...]] = set()
    for order, chosen in itertools.product(
        ("eoi", "eio"), itertools.permutations(found, len(pairs))
    ):
        forms = [
            pair.fitting(name, [(rank, (order, *experts)), plain])
            for name, pair in zip(chosen, pairs, strict=True)
        ]
        if all(forms):
            possible.add(tuple((name, *each[0]) for name, each in zip(chosen, forms, strict=True)))
    if len(possible) != 1:
        shapes = "; ".join(f"{list(pair.a.shape)} and {list(pair.b.shape)}" for pair in pairs)
        how = "in no way" if not possible else f"in {len(possible)} ways"
        raise FormatError(
            f"{pairs[0].adapter.place} has factors of shapes {shapes} for parameters of {module!r}, which fit those of {names.base.uri} "
            f"({', '.join(found) or 'none'}) {how}; merge it with peft, or {_OTHER_BASE}"
        )
    for pair, (name, used_rank, form) in zip(pairs, next(iter(possible)), strict=True):
        weight = names.weight(pair.adapter, name.replace("/", "."), pair.a.name)
        yield weight, pair.change(weight, [(used_rank, form)])
