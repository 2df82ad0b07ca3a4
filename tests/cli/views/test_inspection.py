from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.cli.views import inspection as views
from reshard.cli.views.inspection import inspection_view
from reshard.formats.contents import Encoding, Item, StoredTensor
from reshard.inspection.checkpoint_info import TensorInfo
from tests.cli.show import lines, show
from tests.cli.specimens import SERVED, info, spec


def test_a_checkpoint_at_a_glance() -> None:
    layers = [spec(f"params/layers/{i}/kernel") for i in range(12)]
    step = spec("step", (), None, dtype="int32")
    found = info(*layers, step, digest="0" * 16, others=("note", "empty"))
    assert lines(inspection_view(found, show_all=False)) == [
        "ckpt/1000: orbax v0, 13 tensors, 6.00 KiB",
        "tensor n shape dtype chunks encoding axes bytes",
        "─" * 93,
        "params/layers/{0…11}/kernel 12 16×8 float32 8 of 4×4 zstd-3 [data, model] 6.00 KiB",
        "step 1 scalar int32 whole zstd-3 – 4 B",
        "mesh m0: data=4, model=2 (8 devices)",
        "item (unnamed): a tree",
        "2 other leaves: note, empty",
        "digests recorded: 13 of 13 tensors",
    ]


def test_quantised_weights_are_told() -> None:
    text = "fp8, blocks of 128×128: 1 weight with scales, 1 as they are"
    found = replace(info(spec("a")), quantized=text)
    assert f"quantised: {text}" in lines(inspection_view(found, show_all=False))


def test_all_shows_each_tensor() -> None:
    found = info(*(spec(f"layers/{i}/kernel") for i in range(3)))
    text = show(inspection_view(found, show_all=True))
    assert all(f"layers/{i}/kernel" in text for i in range(3))


def test_several_meshes_are_distinguished() -> None:
    found = info(spec("a"), spec("b", axes=("model",), mesh=SERVED))
    text = lines(inspection_view(found, show_all=False))
    assert "mesh m1: model=8 (8 devices)" in text
    assert any("[model] on m1" in line for line in text)


def test_items_that_are_no_trees() -> None:
    one = info(spec("a"))
    items = (Item("state", "state", True), Item("meta", "meta", False))
    found = replace(one, items=items)
    text = lines(inspection_view(found, show_all=False))
    assert "item state: a tree in state/" in text
    assert "item meta: not a tree, copied unchanged in meta/" in text


def test_the_style_is_shown_only_for_formats_that_have_one() -> None:
    one = info(spec("a"))
    found = replace(one, format="safetensors", style=None)
    headline = "ckpt/1000: safetensors, 1 tensor, 512 B"
    assert lines(inspection_view(found, show_all=False))[0] == headline
    assert repr(found).startswith(
        "CheckpointInfo('ckpt/1000': safetensors, 1 tensor, 512 B, saved on"
    )
    assert (found.to_dict()["style"], one.to_dict()["style"]) == (None, "v0")


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """What a function of the view is called with."""
    seen: list[Any] = []
    inner: Callable[..., Any] = getattr(views, name)

    def noted(*arguments: Any) -> Any:
        seen.append(arguments)
        return inner(*arguments)

    monkeypatch.setattr(views, name, noted)
    return seen


def test_many_tensors_are_capped_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked at once, and only the rows that are shown are made."""
    looks, rows = counted(monkeypatch, "_alike"), counted(monkeypatch, "_row")
    letters = "abcdefghijklmnopqrst"
    names = ["/".join(path) for path in itertools.product(letters, letters, letters)]
    found = info(*(replace(spec("a", (4,), (None,)), name=name) for name in names))
    text = lines(inspection_view(found, show_all=False))
    assert (len(looks), len(rows)) == (8000, 40)
    assert "… and 7,960 more rows; --all shows each tensor" in text
    assert len(text) < 100


def test_names_do_not_reach_the_terminal_raw() -> None:
    found = info(spec("evil\x1b[2J[red]"), others=("x\x07",))
    text = show(inspection_view(found, show_all=False), 80)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]" in text


def test_a_sharded_variable_shows_its_shards_strategy_and_partitioner() -> None:
    found = info(spec("a", axes=None), spec("b", axes=None))
    plain = {"strategy": "mod", "axis": 0, "shards": 4}
    chosen = {"strategy": "div", "axis": 1, "shards": 2, "partitioner": {"max_size": 64}}
    for name, partition in (("a", plain), ("b", chosen)):
        stored = StoredTensor(spec(name, axes=None), Encoding(), b"", False, partition=partition)
        found.tensors[name] = TensorInfo.of(stored)
    text = lines(inspection_view(found, show_all=False))
    assert any("mod 4 along dimension 0" in line for line in text)
    assert any("div 2 along dimension 1 by max_size 64" in line for line in text)
    tensors = found.to_dict()["tensors"]
    assert [t["partition"] for t in tensors] == [plain, chosen]
    assert [t["shards"] for t in tensors] == [4, 2]
