from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import RenderableType

from reshard.cli.views.plan import CHUNKS_ARE_NOT_SHARDS, plan_groups, plan_view, shares_view
from reshard.conversion.plan import ConversionPlan
from reshard.conversion.planned_tensor import PlannedTensor
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.plans import TensorPlan
from tests.cli.show import console, lines, show, text_of
from tests.cli.specimens import SERVED, planned, spec


def _plan_view(plan: ConversionPlan, show_all: bool) -> Iterator[RenderableType]:
    return plan_view(plan, show_all)


def _shares_view(plan: ConversionPlan) -> Iterator[RenderableType]:
    return shares_view(plan_groups(plan.with_shares().tensors, False), False)


def pair(name: str, dtype: str = "float32") -> tuple[TensorSpec, TensorSpec]:
    target = spec(name.replace("params", "model"), axes=(None, "model"), mesh=SERVED, dtype=dtype)
    return spec(name), target


def test_quantised_weights_are_told() -> None:
    plan = replace(planned(pair("params/w")), quantized="int8, a scale for each: 1 weight")
    assert "quantised: int8, a scale for each: 1 weight" in lines(_plan_view(plan, show_all=False))


def test_a_plan_at_a_glance() -> None:
    plan = planned(
        *(pair(f"params/{i}/kernel", "bfloat16") for i in range(12)),
        warnings=("rule 'x' matches no tensor",),
        carried=("note",),
        dropped=("opt/a", "opt/b"),
    )
    text = lines(_plan_view(plan, show_all=False), 300)
    price = plan.plan.tensors[0].price
    assert text[:2] == [
        "ckpt/1000 → served",
        "mesh (data=4, model=2) → mesh (model=8)",
    ]
    strategy = plan.plan.tensors[0].strategy
    assert text[2] == (
        "tensor n shape dtype axes → axes from shards shards from chunks chunks strategy tasks read written"
    )
    assert text[4].startswith(
        "params/{0…11}/kernel → model/{0…11}/kernel 12 16×8 float32 → bfloat16 [data, model] → [null, model] 8 of 4×4 "
        f"8 of 16×1 8 of 4×4 8 of 16×1 {strategy} {12 * price.tasks} 6.00 KiB "
    )
    assert (
        f"total: 12 tensors in {plan.tasks} tasks; reads 6.00 KiB, writes 3.38 KiB, amplification 1.00×"
        in text
    )
    assert "space: 64.0 GiB free at the target" in text
    assert "copied unchanged: note" in text
    assert "left out: opt/a, opt/b" in text
    assert text[-1] == "warning: rule 'x' matches no tensor"


def test_the_memory_line_names_peak_metadata_and_allowance() -> None:
    memory = next(x for x in lines(_plan_view(planned(pair("params/a")), False)) if "memory:" in x)
    assert memory.endswith(
        "of buffers at the worst moment and 5.00 MiB of metadata, 1.00 GiB allowed; 2 workers"
    )


def test_the_memory_line_names_processes() -> None:
    plan = planned(pair("params/a"))
    many = replace(plan, totals=replace(plan.totals, workers=16, processes=4))
    memory = next(x for x in lines(_plan_view(many, False)) if "memory:" in x)
    assert memory.endswith("; 16 workers in 4 processes")


def test_a_row_has_both_names_and_what_will_be_and_fits() -> None:
    name = "layers/{0…2}/attention/query/kernel"
    plan = planned(*(pair(f"params/layers/{i}/attention/query/kernel") for i in range(3)))
    for width in (60, 80, 120, 200):
        text = show(_plan_view(plan, show_all=False), width).splitlines()
        assert max(map(len, text)) <= width
        at = next(n for n, line in enumerate(text) if line.startswith("params"))
        row = " ".join(" ".join(text[at : at + 3]).split())
        assert f"params/{name} → model/{name} " in row
        assert row.count("8 of 16×1") >= 2


def test_all_shows_each_tensor_whole() -> None:
    plan = planned(*(pair(f"params/layers/{i}/attention/query/kernel") for i in range(3)))
    assert len(plan_groups(plan.tensors, show_all=True)) == 3
    target = console(60)
    for view in _plan_view(plan, show_all=True):
        target.print(view, crop=False)
    text = text_of(target)
    for i in range(3):
        name = f"layers/{i}/attention/query/kernel"
        assert f"params/{name} → model/{name} " in text
    assert "[data, model] → [null, model]" in text


def test_shards_that_share_a_chunk_are_shown_beside_it() -> None:
    source, target = pair("params/a")
    merged = replace(target, storage=Grid.whole(target.shape), chunk_shape=target.shape)
    text = lines(_plan_view(planned((source, merged)), show_all=False), 80)
    assert any(line.startswith("params/a → model/a 16×8 float32 8 of 16×1 whole ") for line in text)
    assert CHUNKS_ARE_NOT_SHARDS in " ".join(text)
    same = lines(_plan_view(planned((source, target)), show_all=False))
    assert CHUNKS_ARE_NOT_SHARDS not in " ".join(same)


def test_a_source_that_is_read_again_says_how_often() -> None:
    plan = planned(pair("params/a"))
    (move,) = plan.plan.fills
    price = replace(move.price, decoded_bytes=2 * move.price.source_bytes)
    again = TensorPlan((replace(move, price=price),))
    text = lines(_plan_view(replace(plan, tensors=(PlannedTensor.of(again),)), False))
    assert any(" 1.00 KiB (2.00×)" in line for line in text)
    assert not any("(1.00×)" in line for line in lines(_plan_view(plan, False)))


def test_a_split_by_count_is_named() -> None:
    plan = planned((spec("table", (10, 4), None), spec("table", (10, 4), (None, None))))
    split = {"strategy": "fixed_shards", "fixed_shards": 3, "axis": 0}
    parts = Grid((10, 4), ((0, 4, 7, 10), (0, 4)))
    tensors = (PlannedTensor.of(plan.plan.tensors[0], split, parts),)
    text = lines(_plan_view(replace(plan, tensors=tensors), show_all=False), 300)
    row = "– → fixed_shards 3 along dimension 0 – 3 of ≤ 4×4 whole whole"
    assert any(row in line for line in text)


def test_a_table_whose_rows_are_dealt_out_is_named_unless_a_mesh_splits_it() -> None:
    plan = planned((spec("table", (10, 4), None), spec("table", (10, 4), (None, "model"))))
    dealt = replace(plan.tensors[0], partition={"strategy": "mod", "axis": 0, "shards": 3})
    text = lines(_plan_view(replace(plan, tensors=(dealt,)), show_all=False), 300)
    assert any("– → [null, model]" in line for line in text)
    bare = replace(dealt, target_axes=None)
    text = lines(_plan_view(replace(plan, tensors=(bare,)), show_all=False), 300)
    assert any("– → mod 3 along dimension 0" in line for line in text)


def test_shares_say_where_each_shard_lay() -> None:
    plan = planned(pair("params/a"), pair("params/b"))
    text = lines(_shares_view(plan))
    assert text[:2] == ["params/a → model/a", "source shards 8 of 4×4 → target shards 8 of 16×1"]
    assert "0 0: 25%, 2: 25%, 4: 25%, 6: 25%" in text
    assert "7 1: 25%, 3: 25%, 5: 25%, 7: 25%" in text


def test_shares_of_many_shards_are_capped() -> None:
    source = spec("a", (1024, 1024), (("data", "model"), None))
    from reshard.layout.device_mesh import DeviceMesh

    wide = DeviceMesh((64,), ("x",))
    plan = planned((source, spec("a", (1024, 1024), (None, "x"), wide)))
    text = lines(_shares_view(plan))
    assert "0 0: 12.5%, 1: 12.5%, 2: 12.5%, 3: 12.5%, 4: 12.5%, 5: 12.5%, and 2 more" in text
    assert "… and 48 more target shards; --json has each" in text


def test_whole_tensors_have_no_shares() -> None:
    whole = spec("a", (4,), (None,))
    plan = planned((whole, whole))
    assert lines(_shares_view(plan)) == []
