"""Parts of real plans: every unit is of one part, files that are written in order stay whole, and a plan tells how many parts are useful."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.conversion.check_target import check_targets
from reshard.conversion.make_plan import JointPlan, plan_conversions
from reshard.conversion.open_target import open_output
from reshard.engine.books import Books, TargetRun
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.part_units import PartUnits, widest
from reshard.engine.task_stream import task_batches, units_of_part
from reshard.formats.choose import choose_checkpoint
from reshard.planning.estimates import unit_cost
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import MultiPlan
from reshard.storage.parts import Part
from tests.engine.stores import RAW, ZSTD, Folder, side, tensor

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": ["x"]}, {"match": "big", "axes": [None, "x"]}],
}
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "chunks": ("t", {}),
    "safetensors": ("t.safetensors", {}),
    "several files": ("t", {"to": "safetensors", "file_bytes": "200KB"}),
    "files of ranks": ("t", {"to": "safetensors", "files": "ranks"}),
    "tensorflow": ("t", {"to": "tensorflow"}),
    "keras": ("t.weights.h5", {}),
    "dcp": ("t", {"to": "dcp"}),
}
PARTS = (1, 2, 5, 100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    tree: dict[str, Any] = {
        f"layer_{n:02}": {"kernel": rng.standard_normal((64, 48)).astype(np.float32)}
        for n in range(10)
    }
    tree |= {f"big_{n:02}": rng.standard_normal((64, 512)).astype(np.float32) for n in range(10)}
    path = tmp_path_factory.mktemp("trained") / "1000"
    reshard.save(path, tree)
    return path


def planned(source: Path, folder: Path, *formats: str) -> tuple[JointPlan, list[TargetRun]]:
    """The plan of a conversion to these formats by several processes, and its targets."""
    targets = []
    for number, name in enumerate(formats):
        (folder / str(number)).mkdir(exist_ok=True)
        own, options = FORMATS[name]
        targets.append(reshard.Target(folder / str(number) / own, layout=LAYOUT, **options))
    checked = check_targets(targets, Limits(256 << 20, 2))
    plan = plan_conversions(choose_checkpoint(source, None, None, "source"), checked, 2)
    outputs = [open_output(target, plan.limits(None)) for target in plan.targets]
    runs = [TargetRun(o, Books(t.plan, o)) for t, o in zip(plan.targets, outputs, strict=True)]
    return plan, runs


def every_unit(plan: MultiPlan) -> list[tuple[int, int, int]]:
    return [
        (target, number, unit)
        for target, of_target in enumerate(plan.plans)
        for number, tensor in enumerate(of_target.tensors)
        for unit in range(tensor.unit_count)
    ]


@pytest.mark.parametrize(
    "formats", [*((name,) for name in FORMATS), ("chunks", "safetensors"), ("several files", "chunks", "dcp")]
)  # fmt: skip
def test_every_unit_of_every_target_is_of_one_part(
    formats: tuple[str, ...], trained: Path, tmp_path: Path
) -> None:
    plan, runs = planned(trained, tmp_path, *formats)
    for count in PARTS:
        units = PartUnits(plan.total, [plan.reader], runs, count)
        parts = [list(units.units(Part(n, count))) for n in range(1, count + 1)]
        assert sorted(unit for part in parts for unit in part) == every_unit(plan.total)
        again = units_of_part(plan.total, [plan.reader], runs, Part(count, count))
        assert list(again) == parts[-1]
        batches = [
            unit
            for n in range(1, count + 1)
            for batch in task_batches(plan.total, [plan.reader], runs, Part(n, count))
            for task in batch
            for unit in task.units
        ]
        made = sorted((unit.target, unit.tensor, unit.number) for unit in batches)
        assert made == every_unit(plan.total)


@pytest.mark.parametrize(
    "name", ["safetensors", "several files", "files of ranks", "tensorflow", "dcp"]
)
def test_a_file_that_is_written_in_order_is_of_one_part(
    name: str, trained: Path, tmp_path: Path
) -> None:
    plan, runs = planned(trained, tmp_path, name)
    parts_of: dict[str, set[int]] = defaultdict(set)
    for n in range(1, 6):
        for batch in task_batches(plan.total, [plan.reader], runs, Part(n, 5)):
            ends: dict[str, int] = {}
            for unit in (unit for task in batch for unit in task.units):
                for place in (place for chunk in unit.chunks for place in chunk.places):
                    assert place.start >= ends.get(place.file, 0)
                    ends[place.file] = place.start
                    parts_of[place.file].add(n)
    assert all(len(parts) == 1 for parts in parts_of.values())
    assert len(set.union(*parts_of.values())) == min(5, len(parts_of))


def test_a_plan_tells_how_many_parts_are_useful(trained: Path, tmp_path: Path) -> None:
    for name, parts, reason in (
        ("safetensors", "1 part is", "model.safetensors is written by one process and has 100 % of the cost"),
        ("tensorflow", "8 parts are", "prefix.data-00000-of-00008 is written by one process and has 12.5 % of the cost"),
        ("keras", "1 part is", "model.weights.h5 is written by one process and has 100 % of the cost"),
    ):  # fmt: skip
        path, options = FORMATS[name]
        plan = reshard.plan(trained, tmp_path / path, hosts=9, layout=LAYOUT, **options)
        assert plan.warnings[-1] == f"at most {parts} useful: {reason}"
        alone = reshard.plan(trained, tmp_path / path, layout=LAYOUT, **options)
        assert "useful" not in str(alone.warnings)
    few = reshard.plan(trained, tmp_path / "t", hosts=3, layout=LAYOUT)
    assert few.warnings == ()
    many = reshard.plan(trained, tmp_path / "t", hosts=1000, layout=LAYOUT)
    assert re.fullmatch(
        r"at most \d+ parts are useful: a task of 'big_00' is done by one process and has [\d.]+ % of the cost",
        many.warnings[-1],
    )
    files = reshard.plan(
        trained, tmp_path / "t", hosts=100, layout=LAYOUT, **FORMATS["several files"][1]
    )
    assert re.fullmatch(
        r"at most \d+ parts are useful: model-\d+-of-\d+.safetensors is written by one process and has [\d.]+ % of the cost",
        files.warnings[-1],
    )


def sizes_plan(sizes: Sequence[int]) -> tuple[MultiPlan, TargetOutput]:
    """Tensors of so many bytes, in chunks of 256 MiB at most, planned for plain chunk files."""
    wanted = []
    for number, size in enumerate(sizes):
        spec = tensor(f"w{number}", (size,), (min(size, 256 << 20),), "uint8")
        wanted.append(WantedPiece(Piece.whole(spec, spec), side(spec, ZSTD), side(spec, RAW)))
    plan = make_plan(wanted, 4 << 30, 4)
    return MultiPlan.alone(plan), TargetOutput(Folder(), {}, "")


@given(st.lists(st.integers(0, 34), min_size=1, max_size=20), st.integers(1, 40))
def test_parts_of_tensors_of_any_sizes_are_balanced(powers: list[int], count: int) -> None:
    plan, output = sizes_plan([min(1 << power, 10 << 30) for power in powers])
    parts = PartUnits(plan, [], [TargetRun(output, Books(plan.plans[0], output))], count)
    costs = [unit_cost(r, [plan.fill(at) for at in r.fills], [False], 4) for r in plan.reads]
    loads = [
        sum(costs[tensor] for _, tensor, _ in parts.units(Part(n, count)))
        for n in range(1, count + 1)
    ]
    mean = sum(costs[tensor] for _, tensor, _ in every_unit(plan)) / count
    assert sum(loads) == round(mean * count)
    assert max(loads) <= max(1.3 * mean, mean + max(costs)) + 2
    if max(costs) <= 0.3 * mean:
        assert max(loads) <= 1.3 * mean + 2
    useful = widest(plan, [output]).parts
    assert (useful - 1) * max(costs) < sum(loads) <= useful * max(costs)


def test_tensors_without_elements_need_one_part() -> None:
    plan, output = sizes_plan([])
    assert (
        str(widest(plan, [output])) == "at most 1 part is useful: no tensor has an element to move"
    )


def test_more_parts_than_a_conversion_may_have_are_not_useful() -> None:
    plan, output = sizes_plan([10 << 30] * 2000)
    assert str(widest(plan, [output])).startswith(
        "at most 65,536 parts are useful: a conversion has no more"
    )
