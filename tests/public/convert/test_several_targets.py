"""Conversions to several targets: each as if made alone, from a source that is read once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard import Target
from reshard.errors import MemoryBudgetError, PlanError, StorageError
from tests.campaigns import singly
from tests.fresh_process import run_fresh
from tests.orbax_trees import mesh, put, save_pytree
from tests.source_reads import FRAME_HEADERS_BYTES, Reads, encoded_bytes

MIB = 1 << 20
LINE = mesh((8,), ("x",))
TIMES = re.compile(
    rb'"(init_timestamp_nsecs|commit_timestamp_nsecs)": \d+|"[^"]*_CHECKPOINT_METADATA": "[^"]+"|'
    rb'"digest": "[^"]+"'
)


def layout(parts: int, *rules: tuple[str, list[str | None]]) -> dict:
    mesh_ = {"axes": ["m"], "shape": [parts]}
    return {"mesh": mesh_, "rules": [{"match": name, "axes": axes} for name, axes in rules]}


COLUMNS = layout(4, ("rows|cols", [None, "m"]))
ROWS = layout(2, ("rows|cols", ["m"]), ("cube", [None, "m"]))
SIXTEEN = {
    "mesh": {"axes": ["a", "b"], "shape": [4, 4]},
    "rules": [{"match": "rows", "axes": ["b", "a"]}],
}
WAYS = {
    "columns": {"layout": COLUMNS},
    "half": {"layout": ROWS, "cast": [("rows|cols|cube", "bfloat16")]},
    "zstd": {"layout": SIXTEEN, "compression": "zstd:3", "chunk_bytes": "128KiB"},
    "keep": {"compression": "keep"},
    "kept too": {"compression": "keep", "drop": ["cube"]},
    "some": {
        "select": ["^rows$", "^opt/"],
        "rename": [("^rows$", "model/kernel")],
        "cast": {"rows": "float64"},
    },
    "rest": {"drop": ["^rows$"], "style": "v1", "compression": "gzip", "check": "readback"},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    tree = {
        "rows": put(rng.normal(size=(512, 768)).astype(np.float32), "x", None, on=LINE),
        "cols": put(rng.normal(size=(768, 512)).astype(np.float32), None, "x", on=LINE),
        "cube": put(rng.normal(size=(40, 30, 20)).astype(np.float32), on=LINE),
        "opt": {
            "count": 7,
            "note": "hello",
            "mu": [np.arange(9, dtype=np.int32)] * 2,
            "none": None,
        },
        "key": np.arange(24, dtype=np.uint8).reshape(2, 12),
    }
    return {
        "raw": save_pytree(root / "raw", tree, use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree, use_ocdbt=False),
        "zarr3": save_pytree(root / "zarr3", tree, use_ocdbt=False, use_zarr3=True),
        "ocdbt": save_pytree(root / "ocdbt", tree),
    }


def content(folder: Path) -> dict[str, bytes]:
    """Every file, without times and the digests of files that hold them."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): _timeless(p) for p in files}


def _timeless(path: Path) -> bytes:
    is_dated = path.name in ("_CHECKPOINT_METADATA", "slices.json")
    return TIMES.sub(b"", path.read_bytes()) if is_dated else path.read_bytes()


LIMITS = {"much": {}, "little": {"max_memory": "20MiB", "workers": 2}}


@pytest.mark.parametrize(("kind", "memory"), singly(["raw", "zstd", "zarr3", "ocdbt"], [*LIMITS]))
def test_each_is_as_if_it_had_been_made_alone(kind, memory, sources, tmp_path):
    source, limits = sources[kind], LIMITS[memory]
    targets = [Target(tmp_path / "many" / name, **options) for name, options in WAYS.items()]
    made = reshard.convert_all(source, targets, **limits)
    assert [report.target for report in made.reports] == [str(target.target) for target in targets]
    for (name, options), report in zip(WAYS.items(), made.reports, strict=True):
        alone = reshard.convert(source, tmp_path / "alone" / name, **limits, **options)
        assert content(tmp_path / "many" / name) == content(tmp_path / "alone" / name)
        assert list(map(_what, report.tensors)) == list(map(_what, alone.tensors))
        assert report.written_bytes == alone.written_bytes
        assert report.moved_bytes == alone.moved_bytes
        assert report.warnings == alone.warnings
        assert reshard.verify(tmp_path / "many" / name).differences == 0


def _what(tensor):
    """All that a report says of a tensor but the strategy, which may be another beside others."""
    return (
        tensor.source, tensor.target, tensor.shape, tensor.source_dtype, tensor.target_dtype,
        tensor.nbytes, tensor.source_digest, tensor.target_digest, tensor.proof, tensor.cast,
    )  # fmt: skip


def test_databases_hold_the_same(sources, tmp_path):
    ways = {"packed": {"ocdbt": True}, "files": {}, "kept": {"ocdbt": True, "compression": "keep"}}
    targets = [Target(tmp_path / name, **options) for name, options in ways.items()]
    reshard.convert_all(sources["ocdbt"], targets)
    for target in targets:
        assert reshard.verify(sources["ocdbt"], target.target).differences == 0
        assert reshard.verify(target.target).differences == 0


def test_stock_orbax_restores_every_target(sources, tmp_path):
    """On as many devices as there are: a sharding over fewer is not restored without being asked for."""
    columns, rows = (layout(8, ("rows|cols", axes)) for axes in ([None, "m"], ["m"]))
    targets = {
        "columns": Target(tmp_path / "columns", layout=columns),
        "half": Target(tmp_path / "half", layout=rows, cast=[("rows|cols|cube", "bfloat16")]),
        "zstd": Target(tmp_path / "zstd", layout=columns, compression="zstd"),
        "keep": Target(tmp_path / "keep", compression="keep"),
    }
    reshard.convert_all(sources["zstd"], list(targets.values()))
    expected = ocp.PyTreeCheckpointer().restore(sources["zstd"])
    for kind, target in targets.items():
        found = ocp.PyTreeCheckpointer().restore(Path(target.target))
        for name in ("rows", "cols", "cube"):
            wanted = np.asarray(expected[name])
            wanted = wanted.astype(jax.numpy.bfloat16) if kind == "half" else wanted
            np.testing.assert_array_equal(np.asarray(found[name]), wanted)
        assert (found["opt"]["count"], found["opt"]["note"]) == (7, "hello")


# ---- read once ----


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """Single tensors ``w``, in eight chunks each."""
    root = tmp_path_factory.mktemp("tensors")
    values = np.random.default_rng(0).normal(size=(2048, 1024)).astype(np.float32)
    save_pytree(root / "rows", {"w": put(values, "x", None, on=LINE)}, use_ocdbt=False)
    save_pytree(root / "columns", {"w": put(values, None, "x", on=LINE)}, use_ocdbt=False)
    raw = {"use_ocdbt": False, "use_compression": False}
    save_pytree(root / "raw", {"w": put(values, "x", None, on=LINE)}, **raw)
    return root


TO = {
    "columns": {"layout": layout(4, ("w", [None, "m"]))},
    "half": {"layout": layout(2, ("w", ["m"])), "cast": {"w": "bfloat16"}},
    "zstd": {"layout": layout(4, ("w", [None, "m"])), "compression": "zstd"},
}


@pytest.mark.parametrize("kind", ["rows", "columns", "raw"])
def test_every_byte_of_the_source_is_read_once_for_all(kind, tensors, monkeypatch, tmp_path):
    targets = [Target(tmp_path / name, **options) for name, options in TO.items()]
    planned = reshard.plan_all(tensors / kind, targets, max_memory=256 * MIB)
    assert (planned.total.repeated_bytes, planned.total.amplification) == (0, 1.0)
    reads = Reads(monkeypatch)
    made = reshard.convert_all(tensors / kind, targets, max_memory=256 * MIB)
    monkeypatch.undo()
    once = encoded_bytes(tensors / kind)
    assert made.read_bytes == once
    assert [report.read_bytes for report in made.reports] == [once] * 3
    assert _read_more_than_once(reads, tensors / kind) <= FRAME_HEADERS_BYTES


def _read_more_than_once(reads: Reads, source: Path) -> int:
    found = 0
    for path in reads.intervals:
        if Path(path).is_relative_to(source / "w") and not Path(path).name.startswith("."):
            times = reads.times_read(path, 0, Path(path).stat().st_size)
            assert times[0] == 0
            found += sum(count * (n - 1) for n, count in times.items() if n > 1)
    return found


def test_chunks_that_several_targets_keep_are_read_once(tensors, monkeypatch, tmp_path):
    targets = [Target(tmp_path / name, compression="keep") for name in "abc"]
    reads = Reads(monkeypatch)
    made = reshard.convert_all(tensors / "rows", targets)
    monkeypatch.undo()
    assert {t.strategy for report in made.reports for t in report.tensors} == {"copy"}
    assert made.read_bytes == encoded_bytes(tensors / "rows")
    assert _read_more_than_once(reads, tensors / "rows") == 0


def test_what_is_read_again_is_in_the_plan(tensors, tmp_path):
    """Kept as it is stored for one and decoded for the other: two reads, and the plan says so."""
    targets = [
        Target(tmp_path / "kept", compression="keep"),
        Target(tmp_path / "raw", **TO["columns"]),
    ]
    joint = reshard.plan_all(tensors / "rows", targets).total
    assert joint.repeated_bytes == joint.source_bytes == 2048 * 1024 * 4
    made = reshard.convert_all(tensors / "rows", targets)
    assert made.read_bytes == 2 * encoded_bytes(tensors / "rows")


# ---- memory ----

MEASURED = """
    import json, resource, sys
    import reshard
    from reshard import Target
    source, target, little = sys.argv[1:]
    def targets(to):
        columns = {"mesh": {"axes": ["m"], "shape": [4]}, "rules": [{"match": "w", "axes": [None, "m"]}]}
        rows = {"mesh": {"axes": ["m"], "shape": [2]}, "rules": [{"match": "w", "axes": ["m"]}]}
        return [
            Target(f"{to}/a", layout=columns, compression="zstd"),
            Target(f"{to}/b", layout=rows, cast={"w": "bfloat16"}),
            Target(f"{to}/c", layout=columns),
        ]
    reshard.convert_all(little, targets(target + "-little"), max_memory="48MiB", workers=1)  # imports everything
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    before = peak()
    made = reshard.convert_all(source, targets(target), max_memory="48MiB", workers=1)
    print(json.dumps([peak() - before, made.read_bytes]))
"""


def test_memory_is_bounded_for_all_targets_together(tmp_path):
    """64 MiB to three targets within 48 MiB; the buffers of the first conversion are in the base already."""
    values = np.random.default_rng(0).normal(size=(4096, 4096)).astype(np.float32)
    save_pytree(tmp_path / "source", {"w": put(values, "x", None, on=LINE)}, use_ocdbt=False)
    save_pytree(tmp_path / "little", {"w": put(values[:64], "x", None, on=LINE)}, use_ocdbt=False)
    paths = map(str, (tmp_path / "source", tmp_path / "target", tmp_path / "little"))
    grown, _ = run_fresh(MEASURED, *paths).printed
    assert grown <= 52 * MIB
    for name in "abc":
        assert reshard.verify(tmp_path / "target" / name).differences == 0


def test_the_budget_is_one_for_all_targets(tensors, tmp_path):
    targets = [Target(tmp_path / name, **options) for name, options in TO.items()]
    plan = reshard.plan_all(tensors / "rows", targets, max_memory="64MiB", workers=2).total
    assert plan.peak_bytes <= plan.max_memory <= 64 * MIB
    assert max(p.metadata_bytes for p in plan.plans) > 0
    with pytest.raises(MemoryBudgetError, match=r"'w' of shape \[2048, 1024\] needs at least"):
        reshard.plan_all(tensors / "rows", targets, max_memory="1MiB")


# ---- refused, and what is told ----


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "the target '{0}/a' is given twice; give every target a folder of its own"),
        (["a", "b/../a"], "the target '{0}/b/../a' is given twice; give"),
        (["a", "a/b/c"], "the target '{0}/a/b/c' is inside the target '{0}/a'; choose targets"),
        (["a/b", "a"], "the target '{0}/a/b' is inside the target '{0}/a'; choose targets"),
        (["a", "../source"], "the target '{0}/../source' is the source itself; choose another target"),
        (["a", "../source/w"], "'{0}/../source/w' is inside the source"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("call", [reshard.convert_all, reshard.plan_all])
def test_targets_that_meet_are_refused(call, names, message, sources, tmp_path):
    (tmp_path / "source").symlink_to(sources["raw"])
    (tmp_path / "t").mkdir()
    targets = [Target(f"{tmp_path}/t/{name}") for name in names]
    with pytest.raises(StorageError, match=re.escape(message.format(tmp_path / "t"))):
        call(sources["raw"], targets)
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.parametrize("targets", [[], None, "ab", ["a"], [("a", {})]], ids=repr)
def test_targets_are_a_list_of_target_records(targets, sources):
    with pytest.raises(PlanError, match=r"expected a list of at least one reshard\.Target"):
        reshard.convert_all(sources["raw"], targets)


def test_a_rule_that_matches_nothing_names_its_target(sources, tmp_path):
    targets = [Target(tmp_path / "a"), Target(tmp_path / "b", select=["nothing"])]
    with pytest.raises(PlanError, match=rf"^target '{tmp_path}/b': select 'nothing'") as caught:
        reshard.convert_all(sources["raw"], targets)
    assert caught.value.target == f"{tmp_path}/b"
    assert list(tmp_path.iterdir()) == []


def test_progress_is_of_all_targets_together(sources, tmp_path):
    seen = []
    targets = [Target(tmp_path / name, **WAYS[name]) for name in ("columns", "half", "some")]
    made = reshard.convert_all(sources["raw"], targets, progress=seen.append)
    copying = [p for p in seen if p.stage == "copying"]
    moved = [p.moved_bytes for p in copying]
    assert moved == sorted(moved)
    assert {p.total_bytes for p in copying} == {sum(r.moved_bytes for r in made.reports)}
    assert copying[-1].moved_bytes == copying[-1].total_bytes
    assert copying[-1].tasks_done == copying[-1].tasks
    assert [p.stage for p in seen[len(copying) :]] == ["syncing"] * 3


def test_relative_paths_and_reports_keep_what_was_given(sources, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = reshard.convert_all(sources["raw"], [Target("a"), Target("b", compression="zstd")])
    assert [report.target for report in made.reports] == ["a", "b"]
    assert made.source == str(sources["raw"])
    again = reshard.convert_all(sources["raw"], [Target("a"), Target("b", compression="zstd")])
    assert all(report.already_done for report in again.reports)
    assert again.read_bytes == 0


def test_slices_are_of_each_target(sources, tmp_path):
    targets = [Target(tmp_path / name, **WAYS[name]) for name in ("columns", "half")]
    reshard.convert_all(sources["raw"], targets)
    found = [
        json.loads((Path(g.target) / "slices.json").read_text())["tensors"]["rows"] for g in targets
    ]
    assert [(t["dtype"], t["parts"]) for t in found] == [("float32", [1, 4]), ("bfloat16", [2, 1])]
