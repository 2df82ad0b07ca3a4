from __future__ import annotations

from msgspec.structs import replace

from reshard.cli.views.plan import plan_groups, plan_view
from reshard.cli.views.shares import shares_view
from reshard.layout.tensor_spec import TensorSpec
from tests.cli.show import lines, show
from tests.cli.specimens import SERVED, planned, spec


def pair(name: str, dtype: str = "float32") -> tuple[TensorSpec, TensorSpec]:
    target = spec(name.replace("params", "model"), axes=(None, "model"), mesh=SERVED, dtype=dtype)
    return spec(name), target


def test_a_plan_at_a_glance() -> None:
    plan = planned(
        *(pair(f"params/{i}/kernel", "bfloat16") for i in range(12)),
        warnings=("rule 'x' matches no tensor",),
        carried=("note",),
        dropped=("opt/a", "opt/b"),
    )
    text = lines(plan_view(plan, show_all=False))
    price = plan.plan.moves[0].price
    assert text[:2] == [
        "ckpt/1000 → served",
        "mesh (data=4, model=2) → mesh (model=8)",
    ]
    row = next(i for i, line in enumerate(text) if line.startswith("params/{0…11}/kernel"))
    strategy = plan.plan.moves[0].strategy
    assert text[row] == (
        f"params/{{0…11}}/kernel → model/{{0…11}}/kernel 12 16×8 8 of 4×4 {strategy} 6.00 KiB 1.00×"
    )
    assert text[row + 1].startswith(
        f"[data, model] → [null, model] float32 → bfloat16 → 8 of 16×1 {12 * price.tasks} tasks "
    )
    assert (
        f"total: 12 tensors in {plan.plan.tasks} tasks; reads 6.00 KiB, writes 3.38 KiB, amplification 1.00×"
        in text
    )
    assert "space: 64.0 GiB free at the target" in text
    assert "carried along unchanged: note" in text
    assert "left out: opt/a, opt/b" in text
    assert text[-1] == "warning: rule 'x' matches no tensor"


def test_the_memory_line_names_peak_metadata_and_allowance() -> None:
    memory = next(x for x in lines(plan_view(planned(pair("params/a")), False)) if "memory:" in x)
    assert memory.endswith(
        "of buffers at the worst moment and 5.00 MiB of metadata, 1.00 GiB allowed; 2 workers"
    )


def test_all_shows_each_tensor_and_every_row_fits_80_columns() -> None:
    plan = planned(*(pair(f"params/layers/{i}/attention/query/kernel") for i in range(3)))
    assert len(plan_groups(plan.tensors, show_all=True)) == 3
    text = show(plan_view(plan, show_all=True), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "attention/" in text
    wide = show(plan_view(plan, show_all=True), 200)
    assert text.count("KiB") == wide.count("KiB")
    assert text.count("1.00×") == wide.count("1.00×")


def test_a_split_by_count_is_named() -> None:
    plan = planned((spec("table", (10, 4), None), spec("table", (10, 4), (None, None))))
    split = {"strategy": "fixed_shards", "fixed_shards": 3, "axis": 0}
    tensors = (replace(plan.tensors[0], partition=split),)
    text = lines(plan_view(replace(plan, tensors=tensors), show_all=False))
    assert any(line.startswith("– → fixed_shards 3 along dimension 0") for line in text)


def test_a_table_whose_rows_are_dealt_out_is_named_unless_a_mesh_splits_it() -> None:
    plan = planned((spec("table", (10, 4), None), spec("table", (10, 4), (None, "model"))))
    dealt = replace(plan.tensors[0], partition={"strategy": "mod", "axis": 0, "shards": 3})
    text = lines(plan_view(replace(plan, tensors=(dealt,)), show_all=False))
    assert any(line.startswith("– → [null, model]") for line in text)
    bare = replace(dealt, target=replace(dealt.target, layout=None))
    text = lines(plan_view(replace(plan, tensors=(bare,)), show_all=False))
    assert any(line.startswith("– → mod 3 along dimension 0") for line in text)


def test_shares_say_where_each_shard_lay() -> None:
    plan = planned(pair("params/a"), pair("params/b"))
    text = lines(shares_view(plan_groups(plan.tensors, False), False))
    assert text[:2] == ["params/a → model/a", "source shards 8 of 4×4 → target shards 8 of 16×1"]
    assert "0 0: 25%, 2: 25%, 4: 25%, 6: 25%" in text
    assert "7 1: 25%, 3: 25%, 5: 25%, 7: 25%" in text


def test_shares_of_many_shards_are_capped() -> None:
    source = spec("a", (1024, 1024), (("data", "model"), None))
    from reshard.layout.mesh import DeviceMesh

    wide = DeviceMesh((64,), ("x",))
    plan = planned((source, spec("a", (1024, 1024), (None, "x"), wide)))
    text = lines(shares_view(plan_groups(plan.tensors, False), False))
    assert "0 0: 12.5%, 1: 12.5%, 2: 12.5%, 3: 12.5%, 4: 12.5%, 5: 12.5%, and 2 more" in text
    assert "… and 48 more target shards; --json has each" in text


def test_whole_tensors_have_no_shares() -> None:
    whole = spec("a", (4,), (None,))
    plan = planned((whole, whole))
    assert lines(shares_view(plan_groups(plan.tensors, False), False)) == []
