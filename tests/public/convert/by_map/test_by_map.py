"""Conversions by a map, through every strategy and form of a target, held against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard import Target
from reshard.engine import task_stream
from tests.orbax_trees import nested
from tests.public.convert.by_map.trained import (
    EXPECTED,
    HEADS,
    KEPT,
    MAP,
    WORDS,
    assert_as_expected,
    read_all,
)

FORMS: dict[str, dict[str, Any]] = {
    "shards": {"to": "safetensors", "file_bytes": 4000},
    "one file": {"to": "safetensors", "files": "one"},
    "orbax": {"to": "orbax"},
    "zstd": {"to": "orbax", "compression": "zstd"},
    "small chunks": {"to": "orbax", "chunk_bytes": 256},
    "small zstd chunks": {"to": "orbax", "chunk_bytes": 300, "compression": "zstd"},
    "database": {"to": "orbax", "ocdbt": True},
    "read back": {"to": "safetensors", "check": "readback"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_target(
    source: Path, map_file: Path, tmp_path: Path, form: dict[str, Any]
) -> None:
    target = tmp_path / ("out.safetensors" if form.get("files") == "one" else "out")
    report = reshard.convert(source, target, map=map_file, **form)
    assert_as_expected(target)
    assert report.map is not None
    assert (report.map.sources, report.map.targets) == (8, len(EXPECTED))
    assert all(tensor.target_digest for tensor in report.tensors)


def compressed(source: Path, path: Path, **options: Any) -> Path:
    reshard.convert(source, path, **options)
    return path


SOURCES: dict[str, dict[str, Any]] = {
    "zstd": {"compression": "zstd", "chunk_bytes": 400},
    "gzip": {"compression": "gzip"},
    "blosc": {"compression": "blosc", "chunk_bytes": 1000},
    "raw chunks": {"chunk_bytes": 500},
    "safetensors": {"to": "safetensors"},
    "database": {"ocdbt": True},
}


@pytest.mark.parametrize("stored", SOURCES.values(), ids=SOURCES)
def test_every_form_of_a_source(
    source: Path, map_file: Path, tmp_path: Path, stored: dict[str, Any]
) -> None:
    again = compressed(source, tmp_path / "again", **stored)
    for name in ("a.safetensors", "b"):
        to = {} if name == "b" else {"to": "safetensors"}
        reshard.convert(again, tmp_path / name, map=map_file, **to)
    assert_as_expected(tmp_path / "a.safetensors")
    assert not reshard.verify(tmp_path / "a.safetensors", tmp_path / "b").differences


def test_the_least_memory_gives_the_same(source: Path, map_file: Path, tmp_path: Path) -> None:
    with pytest.raises(reshard.MemoryBudgetError) as refused:
        reshard.convert(source, tmp_path / "out", map=map_file, max_memory=1 << 16)
    least = refused.value.smallest_bytes
    assert least is not None
    reshard.convert(source, tmp_path / "out", map=map_file, max_memory=max(least, 8 << 20))
    assert_as_expected(tmp_path / "out")


def test_a_layout_splits_the_new_names(source: Path, map_file: Path, tmp_path: Path) -> None:
    layout = {
        "mesh": {"axes": ["model"], "shape": [2]},
        "rules": [{"match": r"q\.weight$", "axes": ["model", None]}],
    }
    report = reshard.convert(source, tmp_path / "out", map=map_file, layout=layout)
    assert_as_expected(tmp_path / "out")
    assert not report.warnings
    shown = reshard.inspect(tmp_path / "out").tensors
    assert shown["layers.0.q.weight"].spec.layout is not None


def test_each_target_has_a_map_of_its_own(source: Path, map_file: Path, tmp_path: Path) -> None:
    targets = [
        Target(tmp_path / "served", map=map_file, to="safetensors"),
        Target(tmp_path / "copy"),
        Target(tmp_path / "half", map=map_file, cast={"float32": "bfloat16"}),
    ]
    reshard.convert_all(source, targets)
    assert_as_expected(tmp_path / "served")
    assert not reshard.verify(source, tmp_path / "copy").differences
    half = read_all(tmp_path / "half")
    for name, array in EXPECTED.items():
        if name.endswith("kv.weight"):
            np.testing.assert_array_equal(half[name], array.astype(ml_dtypes.bfloat16))


def test_rules_about_names_of_the_source_come_before_it_and_those_of_the_target_after(
    source: Path, tmp_path: Path
) -> None:
    made = reshard.convert(
        source,
        tmp_path / "out",
        map={"map": [{"from": "params/embed", "to": "embed.weight"}]},
        select=["embed$"],
        rename=[("^embed", "tokens")],
        cast=[("^embed", "float16")],
    )
    assert [(t.target, t.target_dtype) for t in made.tensors] == [("tokens.weight", "float16")]
    assert "params/head" in reshard.plan(source, map={"map": [{"from": "params/embed", "to": "e"}]}, select=["embed$"]).dropped  # fmt: skip


def test_it_says_what_becomes_of_each_tensor(source: Path, map_file: Path, tmp_path: Path) -> None:
    plan = reshard.plan(source, tmp_path / "out", map=map_file)
    kinds = {tensor.target: tensor.change for tensor in plan.tensors}
    assert kinds["embed.weight"] == kinds["layers.0.down.weight"] == "exact"
    assert kinds["layers.3.q.weight"] == kinds["layers.1.norm.weight"] == "rounded"
    assert kinds["layers.2.up.weight"] == "cast"
    assert str(plan.map) == (
        "map: 8 tensors become 27, every element once (12 exact, 10 rounded, 5 cast)"
    )
    report = reshard.convert(source, tmp_path / "out", map=map_file)
    found = {tensor.target: tensor for tensor in report.tensors}
    assert found["layers.1.kv.weight"].sources == ("params/layers/key", "params/layers/value")
    rounded = found["layers.0.q.weight"]
    exact = EXPECTED["layers.0.q.weight"].astype(np.float64)
    assert rounded.cast is not None
    assert 0 < rounded.cast.largest_relative_error < 1e-7
    assert np.isfinite(exact).all()
    document = report.to_dict()
    assert document["map"]["rounded"] == 10


def test_overflows_of_arithmetic_are_counted(tmp_path: Path) -> None:
    save_file({"w": np.array([1.0, 1e5, 3.0], np.float32)}, tmp_path / "a.safetensors")
    rule = {"map": [{"from": "w", "to": "w", "multiply": 10, "cast": "float16"}]}
    report = reshard.convert(tmp_path / "a.safetensors", tmp_path / "b", map=rule)
    cast = report.tensors[0].cast
    assert cast is not None
    assert cast.overflows == 1


def test_a_run_that_was_interrupted_resumes(
    source: Path, map_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)

    def stop(found: reshard.Progress) -> None:
        if found.moved_bytes > found.total_bytes // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard.convert(source, tmp_path / "out", map=map_file, chunk_bytes=512, progress=stop, workers=1)  # fmt: skip
    report = reshard.convert(source, tmp_path / "out", map=map_file, chunk_bytes=512, workers=1)
    assert report.resumed_bytes > 0
    assert_as_expected(tmp_path / "out")
    again = reshard.convert(source, tmp_path / "out", map=map_file, chunk_bytes=512, workers=1)
    assert again.already_done


def test_another_map_is_another_conversion(source: Path, map_file: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "out", map=map_file)
    other = MAP.replace("multiply: 2", "multiply: 4")
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(source, tmp_path / "out", map=other)


def test_parts_make_it_together(source: Path, map_file: Path, tmp_path: Path) -> None:
    for part in ("1/3", "3/3", "2/3"):
        reshard.convert_part(
            source, tmp_path / "out", part=part, map=map_file, chunk_bytes=512, max_memory="256MiB", workers=2
        )  # fmt: skip
    reshard.commit(tmp_path / "out")
    assert_as_expected(tmp_path / "out")


def test_tied_tensors_must_be_equal(tmp_path: Path) -> None:
    embed = np.arange(12, dtype=np.float32).reshape(4, 3)
    tied = {"map": [{"from": "embed", "to": "e"}, {"from": "head", "same_as": "embed"}]}
    save_file({"embed": embed, "head": embed}, tmp_path / "a.safetensors")
    report = reshard.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", map=tied)
    assert [tensor.target for tensor in report.tensors] == ["e"]
    save_file({"embed": embed, "head": embed + 1}, tmp_path / "c.safetensors")
    with pytest.raises(
        reshard.VerificationError,
        match=r"^the map says that 'head' equals 'embed' \(same_as\), but their digests differ; the output was discarded; ",
    ):
        reshard.convert(tmp_path / "c.safetensors", tmp_path / "d.safetensors", map=tied)
    assert not (tmp_path / "d.safetensors").exists()
    found = reshard.verify(tmp_path / "c.safetensors", tmp_path / "b.safetensors", map=tied)
    assert found.damage


def test_backwards_gives_every_bit_back(tmp_path: Path) -> None:
    exact = "\n".join(
        line for line in MAP.splitlines() if "add:" not in line and "drop" not in line
    )
    exact = exact.replace(", multiply: sqrt(p * two)", "").replace(", cast: bfloat16", "")
    params = {n.removeprefix("params/"): a for n, a in KEPT.items() if not n.endswith("norm")}
    reshard.save(tmp_path / "params", nested(params))
    given = exact.replace("under: params/layers/", "under: layers/").replace("params/", "")
    reshard.convert(tmp_path / "params", tmp_path / "out", map=given, to="safetensors")
    reshard.convert(
        tmp_path / "out",
        tmp_path / "back",
        map=given,
        sizes={"h": HEADS, "v": WORDS},
        reverse=True,
        to="orbax",
    )
    assert not reshard.verify(tmp_path / "params", tmp_path / "back", rename=()).differences


def test_a_source_that_changed_since_it_was_recorded_is_found(source: Path, tmp_path: Path) -> None:
    raw = compressed(source, tmp_path / "raw", to="safetensors", select=["^params/"])
    (file,) = raw.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    text = MAP.replace("drop: ['^opt_state/', '^step$']", "")
    with pytest.raises(reshard.CorruptError, match="its bytes changed since"):
        reshard.convert(raw, tmp_path / "out", map=text)
    assert not (tmp_path / "out").exists()


def test_arguments_of_a_map_without_one() -> None:
    with pytest.raises(
        reshard.PlanError, match=r"^sizes are for a map, but no map is given; name one \(map\)$"
    ):
        reshard.check_arguments(sizes={"a": 2})
    with pytest.raises(reshard.PlanError, match=r"^reverse is for a map, but no map is given"):
        reshard.check_arguments(reverse=True)
    with pytest.raises(reshard.PlanError, match="expected a name and a whole number from 1 to"):
        reshard.check_arguments(map=MAP, sizes={"a": 0})
