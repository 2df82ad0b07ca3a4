"""Random scripts: what is learned from two tiny models is right for a third, asked about, or refused; never wrong without a word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from reshard.maps.example.infer import made_by
from tests.maps.example.learning import Tree, learned

Array = npt.NDArray[Any]

WELL = (3, 5, 7, 11, 4, 6, 13)
"""Sizes that tell dimensions apart."""
BADLY = (2, 2, 3, 2, 3, 2, 2)


class Script(Struct, frozen=True):
    """A random way to make targets of stacked tensors.

    Attributes:
        orders: the order of the axes behind the first, which is the layers', for each source.
        merged: how many axes are merged, from the front.
        joins: whether the sources are joined to one target, along the first axis.
        unstacks: whether each layer has a target of its own.
        factors: of each source.
    """

    orders: tuple[tuple[int, ...], ...]
    merged: int
    joins: bool
    unstacks: bool
    factor: float
    addend: float

    def sources(self, sizes: Sequence[int]) -> Tree:
        rank = len(self.orders[0])
        return {
            f"params/{name}": np.zeros((sizes[0], *self._shape(n, sizes, rank)), np.float32)
            for n, name in enumerate("abc"[: len(self.orders)])
        }

    def _shape(self, number: int, sizes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Sources that are joined differ along the axis where they are."""
        shape = list(sizes[1 : rank + 1])
        if self.joins:
            shape[self.orders[number][0]] = sizes[rank + 1 + number % 2]
        return tuple(shape)

    def __call__(self, source: Tree) -> dict[str, Array]:
        names = sorted(source)
        layers = len(source[names[0]])
        made: dict[str, Array] = {}
        for layer in range(layers):
            parts = [
                self._changed(source[name][layer], order)
                for name, order in zip(names, self.orders, strict=True)
            ]
            if self.joins:
                made[f"layers.{layer}.joined"] = np.concatenate(parts)
            else:
                made |= {f"layers.{layer}.{n}": part for n, part in zip("abc", parts, strict=False)}
        if self.unstacks:
            return made
        kinds = sorted({name.rsplit(".", 1)[1] for name in made})
        return {
            k: np.stack([made[f"layers.{n}.{k}"] for n in range(layers)], axis=1) for k in kinds
        }

    def _changed(self, array: Array, order: Sequence[int]) -> Array:
        turned = array.transpose(order)
        shape = turned.shape
        merged = turned.reshape(math.prod(shape[: self.merged]), *shape[self.merged :])
        computed = merged * np.float32(self.factor) + np.float32(self.addend)
        return computed if (self.factor, self.addend) != (1, 0) else merged


def drawn(random: np.random.Generator) -> Script:
    rank = int(random.integers(2, 4))
    count = int(random.integers(1, 4))
    joins = bool(random.integers(2)) and count > 1
    order = tuple(map(int, random.permutation(rank)))
    orders = tuple(
        order if joins else tuple(map(int, random.permutation(rank))) for _ in range(count)
    )
    factor, addend = [(1.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 1.0), (0.5, 0.0)][
        random.integers(5)
    ]
    return Script(
        orders, int(random.integers(1, rank)), joins, bool(random.integers(2)), factor, addend
    )


def outcome(script: Callable[[Tree], dict[str, Array]], sizes: Sequence[Sequence[int]]) -> str:
    """What comes of learning from the first sizes, on the last."""
    *examples, last = [script.sources(each) for each in sizes]
    found = learned(examples[0], script, *examples[1:])
    if found.problems:
        return "refused"
    random = np.random.default_rng(5)
    values = {n: random.standard_normal(a.shape).astype(a.dtype) for n, a in last.items()}
    wanted = script(values)
    try:
        made = made_by(found.text, values, {})
    except ValueError:
        return "asked"
    same = made.keys() == wanted.keys() and all(
        made[n].shape == wanted[n].shape and np.allclose(made[n], wanted[n], rtol=1e-6, atol=0)
        for n in wanted
    )
    if not same and (found.asked or found.questions):
        return "asked"
    return "right" if same else "wrong"


def test_scripts_with_sizes_that_differ_are_learned() -> None:
    random = np.random.default_rng(11)
    found = []
    for _ in range(60):
        sizes = [tuple(map(int, random.permutation(WELL))) for _ in range(3)]
        found.append(outcome(drawn(random), sizes))
    assert "wrong" not in found
    assert found.count("right") > 40, found


def test_with_sizes_that_hide_something_nothing_is_wrong_without_a_word() -> None:
    random = np.random.default_rng(12)
    found = []
    for _ in range(60):
        first = tuple(map(int, random.permutation(BADLY)))
        found.append(outcome(drawn(random), [first, tuple(map(int, random.permutation(WELL)))]))
    assert found.count("wrong") == 0, found
