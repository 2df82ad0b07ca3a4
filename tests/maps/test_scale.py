"""Planning by a map grows with the tensors, and not with pairs of them: steps are counted, not seconds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import map_of
from reshard.maps.mapped import Mapped
from reshard.maps.template import Template
from reshard.planning import planner, read_box
from reshard.planning.planner import WantedPiece, make_multi_plan
from reshard.planning.plans import MultiPlan, Side

LAYERS, EXPERTS = 20, 50
SHAPE = (16, 8)
STACKED = (LAYERS, EXPERTS, *SHAPE)
CHUNK = (LAYERS, EXPERTS, 4, 8)


class Steps:
    """Counts the calls of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        original = getattr(owner, name)

        def counting(*arguments: Any, **more: Any) -> Any:
            self.count += 1
            return original(*arguments, **more)

        monkeypatch.setattr(owner, name, counting)


class Matches:
    """Counts the names that templates look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = Template.matcher

        def matcher(*arguments: Any) -> Any:
            match = original(*arguments)

            def counting(name: str) -> Any:
                self.count += 1
                return match(name)

            return counting

        monkeypatch.setattr(Template, "matcher", matcher)


def made(given: Any, shapes: Mapping[str, tuple[int, ...]]) -> Mapped:
    specs = {n: TensorSpec(n, shape, "float32", Grid.whole(shape)) for n, shape in shapes.items()}
    found = map_of(given)
    assert found is not None
    return found.applied(specs)


def planned(
    mapping: Mapped,
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None = None,
    *,
    raw: bool = True,
) -> MultiPlan:
    """The plan of a map; sources are of this shape, compressed, in these chunks or whole."""
    stored, chunk = Grid.regular(shape, chunk or shape), chunk or shape
    wanted_pieces = []
    for tensor in mapping.tensors:
        spec = replace(tensor.spec, chunk_shape=None if raw else tensor.spec.shape)
        target = Side(spec, "raw" if raw else "zstd:3", raw, 0 if raw else 1 << 16)
        for piece in tensor.pieces:
            source = TensorSpec(piece.source, shape, "float32", stored, chunk)
            wanted_pieces.append(WantedPiece(piece, Side(source, "zstd:1", False, 1 << 20), target))
    return make_multi_plan([wanted_pieces], 256 << 20, 2)


def test_a_rule_looks_only_at_names_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"layers.{n}.experts.{m}.w" for n in range(30) for m in range(10)]
    rules = [
        {"from": f"layers.{n}.experts.{{m}}.w", "to": f"{n}.w", "shape": "e -> m e"}
        for n in range(30)
    ]
    steps = Matches(monkeypatch)
    assert len(made({"map": rules}, dict.fromkeys(names, (2,))).tensors) == 30
    assert steps.count == len(names)


def test_copies_look_only_at_what_they_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [{"to": f"copy.{n}", "same_as": "w.0"} for n in range(300)]
    steps = Matches(monkeypatch)
    made({"map": [{"from": "w.0", "to": "w.0"}, *copies]}, {"w.0": (4,)})
    assert steps.count == 301


@pytest.mark.parametrize("raw", [True, False])
def test_copies_are_priced_once_for_each_number_that_shares_a_read(raw: bool) -> None:
    def priced(count: int) -> int:
        copies = [{"to": f"copy.{n}", "same_as": "w"} for n in range(count)]
        mapping = made({"map": [{"from": "w", "to": "w"}, *copies]}, {"w": (64, 64)})
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, planner, "cheapest")
            plan = planned(mapping, (64, 64), raw=raw)
        assert sum(len(read.fills) for read in plan.reads) == count + 1
        assert len(plan.reads) == 1
        return steps.count

    assert 0 < priced(1000) < 2 * priced(100)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunks"])
def test_experts_of_a_stacked_tensor_are_priced_by_their_kind(
    monkeypatch: pytest.MonkeyPatch, raw: bool, chunk: tuple[int, ...] | None
) -> None:
    rule = {"from": "w", "to": "layers.{l}.experts.{x}.w", "shape": "l x e f -> f e"}
    mapping = made({"map": [rule]}, {"w": STACKED})
    steps = Steps(monkeypatch, read_box, "price")
    plan = planned(mapping, STACKED, chunk, raw=raw)
    assert sum(len(read.fills) for read in plan.reads) == LAYERS * EXPERTS
    assert 0 < steps.count < 100


def test_experts_that_are_stacked_are_priced_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"from": "layers.{l}.experts.{x}.w", "to": "w", "shape": "e f -> l x f e"}
    names = itertools.product(range(LAYERS), range(EXPERTS))
    mapping = made({"map": [rule]}, {f"layers.{n}.experts.{m}.w": SHAPE for n, m in names})
    steps = Steps(monkeypatch, planner, "cheapest")
    plan = planned(mapping, SHAPE)
    assert len(plan.reads) == LAYERS * EXPERTS
    assert 0 < steps.count < 10


@pytest.mark.parametrize("chunk", [None, (7, 8)], ids=["whole", "chunks"])
def test_what_repeats_is_priced_by_its_kind(chunk: tuple[int, ...] | None) -> None:
    def priced(count: int) -> int:
        rule = {"from": "w", "to": "w", "shape": "e f -> r e f"}
        mapping = made({"map": [rule], "sizes": {"r": count}}, {"w": SHAPE})
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, read_box, "_stored")
            plan = planned(mapping, SHAPE, chunk)
        assert sum(len(read.fills) for read in plan.reads) == count
        return steps.count

    assert 0 < priced(1000) < 15 * priced(100)


def test_what_shares_a_read_fills_every_element_once() -> None:
    rule = {"from": "w", "to": "layers.{l}.experts.{x}.w", "shape": "l x e f -> f e"}
    mapping = made({"map": [rule]}, {"w": STACKED})
    plan = planned(mapping, STACKED, CHUNK)
    seen = np.zeros(STACKED, int)
    for read in plan.reads:
        for at in read.fills:
            fill = plan.fill(at)
            assert fill.units.shape == fill.piece.shape
            for unit in fill.units.boxes():
                seen[fill.piece.in_source(unit).slices] += 1
    assert (seen == 1).all()
