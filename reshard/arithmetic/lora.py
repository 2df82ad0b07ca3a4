"""Lora: a checkpoint with the products of an adapter's factors added to its weights, as a Computation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import path_of
from reshard.arithmetic.adapters import AdapterModule, AdapterPath, LoraAdapter
from reshard.arithmetic.lora_formula import RANK, Addend, Factor, LoraFormula
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader
from reshard.formats.computed import ComputedTensor, Operand, computed_reader, computed_tensor
from reshard.formats.quantized import quantization
from reshard.geometry.grid import Grid
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.arguments import Path

WEIGHTS = ("bfloat16", "float16", "float32", "float64")
"""The dtypes of weights and factors."""

_OTHER_BASE = "give the checkpoint that the adapter was trained on, with its names (map)"

_MOST_TARGETS = 6
"""Parameters of a module, each of which may have any of its factors: a layer of experts has two or three."""

_COMPARED = 20_000
"""Names that are compared for the nearest one: it takes a second."""


class Lora(Struct, frozen=True):
    """The adapters over a checkpoint, as a Computation; each adds to what those before it make."""

    adapters: tuple[AdapterPath, ...]

    @classmethod
    def asked(cls, values: Sequence[Path]) -> Lora:
        """From ``ADAPTER`` or ``ADAPTER=SCALE`` each. PlanError for a scale that is not finite."""
        return cls(tuple(AdapterPath.parsed(path_of("adapter", value)) for value in values))

    @property
    def option(self) -> tuple[str, list[str]]:
        return "lora", [each.given for each in self.adapters]

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
        weights: dict[str, _Weight] = {}
        kept = 0
        for path in self.adapters:
            merge = _Merge(base, path.open())
            kept += merge.adapter.reader.metadata_bytes
            weights |= dict(merge.replaced())
            for name, addend, tensors in merge.added():
                weight = weights.get(name) or _Weight(Operand.of(base, name))
                operands = merge.operands(name, addend, tensors)
                weights[name] = replace(
                    weight,
                    addends=(*weight.addends, addend),
                    factors=(*weight.factors, *operands),
                )
        made = {name: weight.tensor(base, name) for name, weight in weights.items()}
        reader = computed_reader(base, made)
        return replace(reader, metadata_bytes=reader.metadata_bytes + kept)

    def state(self) -> Iterator[str]:
        """The state of their files."""
        return (line for each in self.adapters for line in each.root.state())


class _Weight(Struct, frozen=True, eq=False):
    """A tensor of the base, or another in its place, and what is added to it."""

    operand: Operand
    addends: tuple[Addend, ...] = ()
    factors: tuple[Operand, ...] = ()

    def tensor(self, base: Reader, name: str) -> ComputedTensor:
        """The tensor that they make."""
        spec, own = base.tensors[name].spec, self.operand.stored.spec
        is_copied = not self.addends and own.dtype == spec.dtype
        formula = LoraFormula(spec.shape, self.addends, is_copied)
        whole = formula.whole
        cuts = [(0, spec.shape[d]) if d in whole else c for d, c in enumerate(own.storage.cuts)]
        spec = replace(spec, storage=Grid(spec.shape, tuple(cuts)), chunk_shape=None)
        return computed_tensor(spec, formula, [self.operand, *self.factors])


_Added = tuple[str, Addend, tuple[str | None, ...]]
"""The name of a tensor of the base, what is added to it, and the adapter's tensors for that."""


class _Merge:
    """A base and an adapter: finds the tensor of the base for each of the adapter."""

    def __init__(self, base: Reader, adapter: LoraAdapter) -> None:
        self.base, self.adapter = base, adapter
        self._dotted = {name.replace("/", "."): name for name in base.tensors}
        self._joined: dict[str, str] = {}
        if adapter.dialect == "diffusers":
            self._joined = {one.replace(".", "_"): name for one, name in self._dotted.items()}

    def replaced(self) -> Iterator[tuple[str, _Weight]]:
        """The tensors that are taken from the adapter as they are."""
        for wanted, tensor in self.adapter.plain.items():
            name = self._name(wanted, tensor)
            mine, own = self.adapter.reader.tensors[tensor].spec, self.base.tensors[name].spec
            are_floats = mine.dtype in WEIGHTS and own.dtype in WEIGHTS
            if mine.shape != own.shape or not (are_floats or mine.dtype == own.dtype):
                raise self._misfit(name, [tensor])
            yield name, _Weight(Operand.of(self.adapter.reader, tensor))

    def added(self) -> Iterator[_Added]:
        """The products that are added, in the order of modules."""
        wrapped: dict[str, list[AdapterModule]] = {}
        for module in self.adapter.modules:
            if self.adapter.dialect == "qwix":
                name = self._name(module.name, module.tensors["a"])
                yield self._first(module, name, _kernel_forms(len(self._shape(name))))
            elif module.config.target_parameters and self._found(f"{module.name}.weight") is None:
                wrapped.setdefault(module.name, []).append(module)
            else:
                name = self._name(f"{module.name}.weight", module.tensors["a"])
                yield self._first(module, name, _layer_forms(len(self._shape(name)), module))
            if (bias := module.tensors.get("bias")) is not None:
                name = self._name(f"{module.name}.bias", bias)
                if len(self._shape(name)) != 1:
                    raise self._misfit(name, [bias])
                sizes = {"o": self._shape(name)[0], RANK: 1}
                yield name, Addend("o", sizes, module.scale, (Factor(("o",)),)), (bias,)
        for modules in wrapped.values():
            yield from self._parameters(modules)

    def operands(
        self, name: str, addend: Addend, tensors: Sequence[str | None]
    ) -> Iterator[Operand]:
        """The operands of an addend. FormatError for one that does not fit the tensor of the base, PlanError for codes."""
        dtype = self.base.tensors[name].spec.dtype
        if dtype not in WEIGHTS:
            self._refuse_codes(name)
            raise PlanError(
                f"{name!r} of {self.base.uri} is {dtype}, but an adapter is added to weights of {', '.join(WEIGHTS)}; cast it first (cast)"
            )
        given = [tensor for tensor in tensors if tensor is not None]
        for factor, tensor in zip(addend.operands, given, strict=True):
            spec = self.adapter.reader.tensors[tensor].spec
            if spec.dtype not in WEIGHTS or not factor.fits(spec.shape, addend.sizes):
                raise self._misfit(name, [tensor])
            yield Operand.of(self.adapter.reader, tensor, is_held=True)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.base.tensors[name].spec.shape

    def _found(self, wanted: str) -> str | None:
        """The tensor that the adapter calls so; None if the base has none.

        Programs that write several models at once begin with the model's name: ``unet.``, and kohya ``lora_unet_`` with "_" for each ".".
        """
        name = self._dotted.get(wanted)
        if name is None and self.adapter.dialect == "diffusers":
            joined = wanted.replace(".", "_").split("_", 2)[-1]
            name = self._dotted.get(wanted.partition(".")[2]) or self._joined.get(joined)
        return name

    def _name(self, wanted: str, tensor: str) -> str:
        """The same; FormatError if the base has none, which may be quantised."""
        if (name := self._found(wanted)) is not None:
            return name
        self._refuse_codes(wanted)
        near = get_close_matches(wanted[:200], list(self._dotted)[:_COMPARED], 1, 0.5)
        hint = f"; the nearest name is {self._dotted[near[0]]!r}" if near else ""
        raise FormatError(
            f"{self.adapter.place} has {tensor!r}, but {self.base.uri} has no tensor {wanted!r}{hint}; {_OTHER_BASE}"
        )

    def _refuse_codes(self, name: str) -> None:
        found = quantization(self.base)
        for pair in found.pairs.values() if found else ():
            stem = pair.stem.replace("/", ".").rstrip("._")
            if name in pair.halves or name.replace("/", ".") in (stem, f"{stem}.weight"):
                raise PlanError(
                    f"{self.adapter.place} is added to weights, but {self.base.uri} holds codes for {name!r} ({pair.scheme}); make weights of "
                    "them first (dequantize)"
                )

    def _fitted(self, module: AdapterModule, name: str, forms: Iterable[_Form]) -> Iterator[_Added]:
        """The addends of the forms that fit."""
        given = module.tensors["a"], module.tensors["b"]
        a, b = (self.adapter.reader.tensors[each].spec.shape for each in given)
        shape = self._shape(name)
        for axes, of_a, of_b in forms:
            sizes = {**dict(zip(axes, shape, strict=False)), RANK: module.rank}
            if len(axes) == len(shape) and of_a.fits(a, sizes) and of_b.fits(b, sizes):
                shared = set("".join(of_a.groups)) & set("".join(of_b.groups))
                first = next(one for one in axes if one not in shared)
                names, factors = given, (of_a, of_b)
                if first not in "".join(of_a.groups):
                    names, factors = names[::-1], factors[::-1]
                alpha, magnitude = module.tensors.get("alpha"), module.tensors.get("magnitude")
                if magnitude is not None and "o" not in axes:
                    raise self._misfit(name, [magnitude])
                lengths = Factor(("o",) if len(axes) < 3 else ("", "o", *("" for _ in axes[2:])))
                one = Factor(("",) * len(self.adapter.reader.tensors[alpha].spec.shape)) if alpha else None  # fmt: skip
                addend = Addend(axes, sizes, module.scale, factors, one, lengths if magnitude else None)  # fmt: skip
                yield name, addend, (*names, alpha, magnitude)

    def _first(self, module: AdapterModule, name: str, forms: Iterable[_Form]) -> _Added:
        """The addend of the first form that fits; FormatError for none."""
        found = next(self._fitted(module, name, forms), None)
        if found is None:
            raise self._misfit(
                name, [module.tensors["a"], module.tensors["b"]], f" and the rank {module.rank}"
            )
        return found

    def _parameters(self, modules: Sequence[AdapterModule]) -> Iterator[_Added]:
        """The addends to parameters of one module, such as the experts of a layer in one tensor.

        peft wraps the module once for each parameter, and writes neither which nor the order of its dimensions, which is that of all: shapes
        say both.
        """
        wanted = modules[0].config.target_parameters or []
        lasts = sorted({target.rpartition(".")[2] for target in wanted})
        found = [name for n in lasts if (name := self._found(f"{modules[0].name}.{n}")) is not None]
        plain = "oi", Factor((RANK, "i")), Factor(("o", RANK))
        possible: list[list[_Added]] = []
        chosen = itertools.permutations(found, len(modules)) if len(found) <= _MOST_TARGETS else ()
        for order, names in itertools.product(("eoi", "eio"), chosen):
            experts = order, Factor((f"e{RANK}", "i")), Factor(("o", f"{RANK}e"))
            pairs = zip(modules, names, strict=True)
            fitted = [next(self._fitted(*pair, (experts, plain)), None) for pair in pairs]
            if (whole := [each for each in fitted if each is not None]) == fitted:
                possible += [whole] * (whole not in possible)
        if len(possible) != 1:
            raise FormatError(
                f"the factors of {modules[0].name!r} in {self.adapter.place} fit the parameters that {self.base.uri} has there "
                f"({', '.join(found) or 'none'}) in {len(possible) or 'no'} ways: expected one; merge it with peft, or {_OTHER_BASE}"
            )
        yield from possible[0]

    def _misfit(self, name: str, tensors: Iterable[str], more: str = "") -> FormatError:
        specs = [self.adapter.reader.tensors[tensor].spec for tensor in tensors]
        given = " and ".join(f"{each.name!r}, {each.dtype} {list(each.shape)}" for each in specs)
        own = self.base.tensors[name].spec
        return FormatError(
            f"{self.adapter.place} has {given}{more}, which does not fit {name!r} of {self.base.uri}, {own.dtype} {list(own.shape)}; {_OTHER_BASE}"
        )


_Form = tuple[str, Factor, Factor]
"""The axes of a weight, of the factor A and of the factor B."""


def _layer_forms(dimensions: int, module: AdapterModule) -> Iterator[_Form]:
    """A linear layer, a convolution, or an embedding, whose weight is the transpose of the product."""
    kernel = "xyz"[: max(0, dimensions - 2)]
    factors = Factor((RANK, "i", *kernel)), Factor(("o", RANK, *("" for _ in kernel)))
    if module.is_embedding or module.config.fan_in_fan_out:
        yield "io", *factors
    if not module.is_embedding:
        # Also behind fan_in_fan_out: a model of both kinds of layers has one config for all.
        yield "oi" + kernel, *factors


def _kernel_forms(dimensions: int) -> Iterator[_Form]:
    """A kernel of Qwix: A has the axes that a layer sums over, B the others, in order, as dimensions of their own or joined.

    All three may have an axis of layers, each at any place; with MaxText it is the second.
    """
    axes = "abcdefg"[:dimensions]
    for layer in ("", "b", "a", *axes[2:]):
        rest = [one for one in axes if one != layer]
        places = [()] if not layer else [(1,), (0,), (2,), (3,), (4,)]
        for at in range(1, len(rest)):
            sides = itertools.product(*({tuple(s), ("".join(s),)} for s in (rest[:at], rest[at:])))
            for (first, second), of_a, of_b in itertools.product(sides, places, places):
                a, b = [*first, RANK], [RANK, *second]
                for place in of_a:
                    a.insert(place, layer)
                for place in of_b:
                    b.insert(place, layer)
                yield axes, Factor(tuple(a)), Factor(tuple(b))
