"""Lora: a checkpoint with the products of an adapter's factors added to its weights, as a Computation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import path_of
from reshard.arithmetic.adapters import AdapterModule, AdapterPath, LoraAdapter
from reshard.arithmetic.average import SameFormula
from reshard.arithmetic.lora_formula import ONE, RANK, Addend, Axes, LoraFormula, Role
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader
from reshard.formats.computed.tensors import (
    ComputedTensor,
    Operand,
    computed_reader,
    computed_tensor,
)
from reshard.formats.quantized import quantization
from reshard.geometry.grid import Grid
from reshard.storage.location import Location, real_text

if TYPE_CHECKING:
    from reshard.arguments import Path

WEIGHTS = ("bfloat16", "float16", "float32", "float64")
"""The dtypes of weights and factors."""

_MOST_TARGETS, _COMPARED = 6, 20_000
"""Parameters of a module, each of which may have any of its factors; and names that are compared for the nearest one, in a second."""


class Lora(Struct, frozen=True):
    """The adapters over a checkpoint, as a Computation; each adds to what those before it make."""

    adapters: tuple[AdapterPath, ...]

    @classmethod
    def asked(cls, values: Sequence[Path]) -> Lora:
        """From ``ADAPTER`` or ``ADAPTER=SCALE`` each. PlanError for anything but a list, and for a scale that is not finite."""
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise PlanError(
                f"lora is {values!r}; expected a list with the path of each adapter, such as ['adapter', 'other=0.5']"
            )
        return cls(tuple(AdapterPath.parsed(path_of("adapter", value)) for value in values))

    @property
    def option(self) -> tuple[str, list[str]]:
        return "lora", [each.named(str(each.root)) for each in self.adapters]

    @property
    def text(self) -> str:
        return ", ".join(each.named(real_text(each.root)) for each in self.adapters)

    @property
    def tensor_bytes(self) -> int:
        """Each has two factors, an addend and its places in a grid."""
        return 6000 * len(self.adapters)

    def applied(self, base: Reader, root: Location) -> Reader:
        """The base with all adapters merged. Raises FormatError, naming the tensor, for an adapter that does not fit the base."""
        del root
        changed: dict[str, tuple[list[Addend], list[Operand]]] = {}
        kept = 0
        for path in self.adapters:
            merge = _Merge(base, path.open())
            kept += merge.adapter.reader.metadata_bytes
            changed |= {name: ([], [operand]) for name, operand in merge.replaced()}
            for name, addend, operands in merge.added():
                addends, given = changed.setdefault(name, ([], [Operand.of(base, name)]))
                addends.append(addend)
                given.extend(operands)
        made = {name: _tensor(base, name, *each) for name, each in changed.items()}
        reader = computed_reader(base, made)
        return replace(reader, metadata_bytes=reader.metadata_bytes + kept)

    @property
    def places(self) -> list[Location]:
        return [each.root for each in self.adapters]


def _tensor(
    base: Reader, name: str, addends: Sequence[Addend], operands: Sequence[Operand]
) -> ComputedTensor:
    """The tensor in the place of one of the base: the first operand, with what is added to it."""
    spec, own = base.tensors[name].spec, operands[0].stored.spec
    formula, full = LoraFormula(spec.shape, tuple(addends)), Grid.whole(spec.shape).cuts
    cuts = [full[d] if d in formula.whole else c for d, c in enumerate(own.storage.cuts)]
    is_copied = not addends and own.dtype == spec.dtype  # bit by bit, NaN and integers too
    spec = replace(spec, storage=Grid(spec.shape, tuple(cuts)), chunk_shape=None)
    how = SameFormula(name, (base.uri,)) if is_copied else formula
    return computed_tensor(spec, how, operands)


_Form = tuple[str, Mapping[Role, Axes]]
"""The axes of a weight, and those of the tensors of a module by their roles, the factor of rows first."""

_Added = tuple[str, Addend, list[Operand]]
"""The name of a tensor of the base, what is added to it, and the adapter's tensors for that."""


class _Merge:
    """A base and an adapter: finds the tensor of the base for each of the adapter."""

    def __init__(self, base: Reader, adapter: LoraAdapter) -> None:
        self.base, self.adapter, self.place = base, adapter, adapter.reader.uri
        self._dotted = {name.replace("/", "."): name for name in base.tensors}

    def replaced(self) -> Iterator[tuple[str, Operand]]:
        """The tensors that are taken from the adapter as they are."""
        for wanted, tensor in self.adapter.plain.items():
            name = self._name(wanted, tensor)
            mine, own = self.adapter.reader.tensors[tensor].spec, self.base.tensors[name].spec
            are_floats = mine.dtype in WEIGHTS and own.dtype in WEIGHTS
            if mine.shape != own.shape or not (are_floats or mine.dtype == own.dtype):
                raise self._misfit(name, [tensor])
            yield name, Operand.of(self.adapter.reader, tensor)

    def added(self) -> Iterator[_Added]:
        """The products that are added, in the order of modules."""
        wrapped: dict[str, list[AdapterModule]] = {}
        for module in self.adapter.modules:
            wanted, first = module.name + module.ending, module.tensors["a"]
            if module.config.target_parameters and self._found(wanted) is None:
                wrapped.setdefault(module.name, []).append(module)
                continue
            name = self._name(wanted, first)
            is_turned = module.config.fan_in_fan_out or first.endswith("_embedding_A")
            # Others come behind: a model of both kinds of layers has one config for all.
            forms: Iterable[_Form] = _LAYERS[not is_turned :]
            if module.ending != ".weight":
                forms = _kernel_forms(len(self.base.tensors[name].spec.shape))
            yield self._first(module, name, forms)
            if (bias := module.tensors.get("bias")) is not None:
                name = self._name(f"{module.name}.bias", bias)
                yield self._first(module, name, [("o", {"bias": ("o",)})])
        for modules in wrapped.values():
            yield from self._parameters(modules)

    def _found(self, wanted: str) -> str | None:
        """The tensor that the adapter calls so, which diffusers begins with the model's name (``unet.``); None if the base has none."""
        name = self._dotted.get(wanted)
        if name is None and not self.adapter.is_peft:
            name = self._dotted.get(wanted.partition(".")[2])
        return name

    def _name(self, wanted: str, tensor: str) -> str:
        """The same; FormatError if the base has none, which may be quantised."""
        if (name := self._found(wanted)) is not None:
            return name
        near = get_close_matches(wanted[:200], list(self._dotted)[:_COMPARED], 1, 0.5)
        hint = f"; the nearest name is {self._dotted[near[0]]!r}" if near else ""
        raise FormatError(
            f"{self.place} has {tensor!r}, but {self.base.uri} has no tensor {wanted!r}{hint}; {self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        found = quantization(self.base)
        kind = next(iter(found.pairs.values())).scheme if found and found.pairs else ""
        codes = f"make weights of its codes, {kind}, first (dequantize), or " if kind else ""
        return f"{codes}give the checkpoint that the adapter was trained on, with its names (map), in {', '.join(WEIGHTS)} (cast)"

    def _fitted(self, module: AdapterModule, name: str, forms: Iterable[_Form]) -> _Added | None:
        """The addend of the first form that fits."""
        own, reader = self.base.tensors[name].spec, self.adapter.reader
        tensors = {role: reader.tensors[each].spec for role, each in module.tensors.items()}
        for axes, roles in forms if own.dtype in WEIGHTS else ():
            if len(axes) != len(own.shape):
                continue
            sizes = {RANK: module.rank, ONE: 1, **dict(zip(axes, own.shape, strict=True))}
            given = {role: each for role, each in roles.items() if role in tensors}
            addend = Addend(axes, sizes, module.scale, given)
            specs = [(tensors[role], addend.shape(role)) for role in given]
            if all(spec.dtype in WEIGHTS and spec.shape == shape for spec, shape in specs):
                return name, addend, [Operand.of(reader, s.name, is_held=True) for s, _ in specs]
        return None

    def _first(self, module: AdapterModule, name: str, forms: Iterable[_Form]) -> _Added:
        """The same; FormatError for none."""
        if (found := self._fitted(module, name, forms)) is None:
            raise self._misfit(name, module.tensors.values(), f" and the rank {module.rank}")
        return found

    def _parameters(self, modules: Sequence[AdapterModule]) -> Iterator[_Added]:
        """The addends to parameters of one module, such as the experts of a layer in one tensor.

        peft wraps the module once for each parameter, and writes neither which nor the order of its dimensions, which is that of all: shapes
        say both.
        """
        wanted = modules[0].config.target_parameters or []
        lasts = sorted({target.rpartition(".")[2] for target in wanted})
        found = [name for n in lasts if (name := self._found(f"{modules[0].name}.{n}")) is not None]
        possible: dict[object, list[_Added]] = {}
        chosen = itertools.permutations(found, len(modules)) if len(found) <= _MOST_TARGETS else ()
        for order, names in itertools.product(("eoi", "eio"), chosen):
            forms = [_layer(order), _layer("oi")]
            pairs = zip(modules, names, strict=True)
            whole = [each for pair in pairs if (each := self._fitted(*pair, forms)) is not None]
            if len(whole) == len(modules):
                possible[tuple((name, addend.axes) for name, addend, _ in whole)] = whole
        if len(possible) != 1:
            raise FormatError(
                f"the factors of {modules[0].name!r} in {self.place} fit the parameters that {self.base.uri} has there "
                f"({', '.join(found) or 'none'}) in {len(possible) or 'no'} ways: expected one; merge it with peft, or {self._remedy}"
            )
        yield from next(iter(possible.values()))

    def _misfit(self, name: str, tensors: Iterable[str], more: str = "") -> FormatError:
        specs = [self.adapter.reader.tensors[tensor].spec for tensor in tensors]
        given = " and ".join(f"{each.name!r}, {each.dtype} {list(each.shape)}" for each in specs)
        own = self.base.tensors[name].spec
        return FormatError(
            f"{self.place} has {given}{more}, which does not fit {name!r} of {self.base.uri}, {own.dtype} {list(own.shape)}; {self._remedy}"
        )


def _layer(axes: str) -> _Form:
    """A linear layer, experts in one tensor (axis "e"), or a convolution (axes "xyz" of its kernel)."""
    expert, kernel = axes[: axes.find("e") + 1], [one for one in axes if one in "xyz"]
    ones = [ONE] * len(kernel)
    of_b: dict[Role, Axes] = {"b": ("o", RANK + expert, *ones)}
    of_a: dict[Role, Axes] = {"a": (expert + RANK, "i", *kernel)}
    factors = of_b | of_a if axes.find("o") < axes.find("i") else of_a | of_b
    return axes, {**factors, "magnitude": (ONE, "o", *ones) if kernel else ("o",)}


_LAYERS = tuple(map(_layer, ("io", "oi", "oix", "oixy", "oixyz")))


def _kernel_forms(dimensions: int) -> Iterator[_Form]:
    """A kernel of Qwix: A has the axes that a layer sums over, B the others, in order, as dimensions of their own or joined.

    All three may have an axis of layers, each at any place; with MaxText it is the second.
    """
    axes = "abcdefg"[:dimensions]
    for layer in ("", "b", "a", *axes[2:]):
        rest, places = axes.replace(layer, ""), (1, 0, 2, 3, 4) if layer else (0,)
        for at in range(1, len(rest)):
            # A dict, since every process must try them in the same order.
            sides = itertools.product(
                *(dict.fromkeys((tuple(s), (s,))) for s in (rest[:at], rest[at:]))
            )
            for (first, second), of_a, of_b in itertools.product(sides, places, places):
                a, b = [*first, RANK], [RANK, *second]
                a.insert(of_a, layer)
                b.insert(of_b, layer)
                yield axes, {"a": tuple(filter(None, a)), "b": tuple(filter(None, b))}
