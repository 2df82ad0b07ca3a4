"""Bad input to a conversion: what is said, and that nothing is left behind, replaced or touched.

Every case runs through the API and through the command line.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts

import reshard.api
from reshard.cli.app import run
from reshard.engine.report import Progress
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    LayoutError,
    MemoryBudgetError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    StorageError,
    TargetExistsError,
)
from tests.formats.orbax.by_hand import write_item, write_tree, zarr2, zarr3
from tests.orbax_trees import mesh, put, save_pytree, save_v1

NOBODY = 65534


def make_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "params": {
            "kernel": put(rng.normal(size=(16, 8)).astype(np.float32), "data", "model", on=mesh()),
            "bias": np.arange(8, dtype=np.float32),
        },
        "table": rng.normal(size=(64, 64)).astype(np.float32),
        "count": np.arange(6, dtype=np.int32),
        "wave": np.arange(4, dtype=np.complex64),
        "key": jax.random.key(7),
        "name": "a string",
    }


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One tree as stock Orbax saves it in several ways; never changed, only copied."""
    root, tree = tmp_path_factory.mktemp("saved"), make_tree()
    return {
        "plain": save_pytree(root / "plain", tree, use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree, use_ocdbt=False, use_zarr3=True),
        "ocdbt": save_pytree(root / "ocdbt", tree),
        "v1": save_v1(root / "v1", tree),
    }


@pytest.fixture
def source(saved: Mapping[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["plain"], tmp_path / "src"))


def fingerprint(path: Path) -> str:
    """Digest of every name, kind and byte below a path."""
    found = hashlib.sha256()
    for entry in [path, *sorted(path.rglob("*"))] if os.path.lexists(path) else []:
        kind = "link" if entry.is_symlink() else "dir" if entry.is_dir() else "file"
        found.update(f"{entry.relative_to(path)}\0{kind}\0".encode())
        found.update(entry.read_bytes() if kind == "file" else b"")
    return found.hexdigest()


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if "reshard-partial" in p.name]


@contextmanager
def nothing_changes(*paths: Path) -> Iterator[None]:
    """What lies at the paths is the same afterwards, and no staging folder is beside them."""
    before = [fingerprint(p) for p in paths]
    yield
    assert [fingerprint(p) for p in paths] == before
    for path in paths:
        assert not path.parent.is_dir() or leftovers(path.parent) == []


def refused(
    src: Path | str,
    dst: Path | str,
    error: type[ReshardError],
    *texts: str,
    **options: Any,
) -> ReshardError:
    """The conversion is refused by the API with these texts and leaves everything as it was."""
    with nothing_changes(Path(src), Path(dst)), pytest.raises(error) as caught:
        reshard.api.convert(src, dst, **options)
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def refused_by_command(
    capsys: pytest.CaptureFixture[str],
    src: Path | str,
    dst: Path | str,
    *texts: str,
    args: Any = (),
) -> None:
    """The same of the command line: exit code 1, one message, no traceback."""
    with nothing_changes(Path(src), Path(dst)):
        assert run(["convert", str(src), str(dst), *map(str, args)]) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err + printed.out
    assert "error: " in printed.err
    for text in texts:
        assert text in printed.err


def converts(src: Path, dst: Path, **options: Any) -> None:
    """The conversion works, and every tensor is what it was."""
    reshard.api.convert(src, dst, **options)
    assert reshard.api.verify(src, dst).differences == 0
    assert leftovers(dst.parent) == []


# ---- the source ----


@dataclass(frozen=True)
class Damage:
    """Something done to a checkpoint, and what must be said of it."""

    name: str
    do: Callable[[Path], object]
    error: type[ReshardError]
    texts: tuple[str, ...]
    of: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)


def cut(name: str, share: float = 0.5) -> Callable[[Path], object]:
    def do(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(len(data) * share)])

    return do


def put_bytes(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(data)


def remove(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def flip(name: str) -> Callable[[Path], object]:
    """Every byte of a file is turned around."""
    return lambda path: (path / name).write_bytes(
        bytes(255 - b for b in (path / name).read_bytes())
    )


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def do(path: Path) -> None:
        text = (path / name).read_text()
        assert old in text
        (path / name).write_text(text.replace(old, new))

    return do


def garble_index(path: Path) -> None:
    for file in (path / "d").iterdir():
        flip(str(file))(path)


def garble_values(path: Path) -> None:
    """The files of the process that wrote the values, which the merged index points into."""
    for file in (path / "ocdbt.process_0" / "d").iterdir():
        flip(str(file))(path)


def cut_database(path: Path) -> None:
    for file in path.rglob("d/*"):
        cut(str(file))(path)


def lose_database(path: Path) -> None:
    for folder in [p for p in path.rglob("d") if p.is_dir()]:
        shutil.rmtree(folder)


def every_metadata_file() -> list[Damage]:
    names = {
        "plain": [
            "_METADATA", "_CHECKPOINT_METADATA", "_sharding", "_strings.json",
            "array_metadatas/process_0", "params.kernel/.zarray",
        ],
        "zstd": ["params.kernel/zarr.json"],
        "v1": ["_CHECKPOINT_METADATA", "state/_METADATA", "state/_sharding"],
    }  # fmt: skip
    breaks: list[tuple[str, Callable[[str], Callable[[Path], object]]]] = [
        ("truncated", cut),
        ("empty", lambda name: put_bytes(name, b"")),
        ("not-json", lambda name: put_bytes(name, b"\x00not json at all")),
        ("not-an-object", lambda name: put_bytes(name, b"[1, 2]")),
    ]
    return [
        Damage(f"{how}-{of}-{name.replace('/', '.')}", do(name), CorruptError, (name,), of)
        for of, files in names.items()
        for name in files
        for how, do in breaks
    ]


DAMAGE = [
    *every_metadata_file(),
    Damage(
        "no-tree-metadata", remove("_METADATA"), IncompleteCheckpointError,
        ("should hold _METADATA", "it was never committed, or files were lost"),
    ),
    Damage(
        "no-item-metadata", remove("state/_METADATA"), IncompleteCheckpointError,
        ("state should hold _METADATA", "it was never committed, or files were lost"), "v1",
    ),
    Damage(
        "no-commit-marker", remove("_CHECKPOINT_METADATA"), IncompleteCheckpointError,
        ("has the marker orbax.checkpoint but no _CHECKPOINT_METADATA", "use a checkpoint that was saved completely"),
        "v1",
    ),
    Damage(
        "array-lost", lambda path: shutil.rmtree(path / "params.kernel"), CorruptError,
        ("the tensor 'params/kernel' is in _METADATA, but its metadata", "params.kernel/.zarray"),
    ),
    Damage(
        "chunk-missing", remove("params.kernel/0.0"), CorruptError,
        ("tensor 'params/kernel', chunk [0, 0]: not stored; expected it under 'params.kernel/0.0'", "restore it from a copy"),
    ),
    Damage(
        "chunk-truncated", cut("params.kernel/1.0"), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0"),
    ),
    Damage(
        "chunk-empty", put_bytes("params.kernel/1.0", b""), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0"),
    ),
    Damage(
        "chunk-too-long", lambda path: put_bytes("params.kernel/1.0", bytes(999))(path), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0", "999"),
    ),
    Damage(
        "chunk-garbage", flip("params.kernel/c/0/0"), CorruptError,
        ("tensor 'params/kernel', chunk [0, 0]", "params.kernel/c/0/0"), "zstd",
    ),
    Damage(
        "compressed-chunk-truncated", cut("params.kernel/c/1/1", 0.9), CorruptError,
        ("tensor 'params/kernel', chunk [1, 1]", "params.kernel/c/1/1"), "zstd",
    ),
    Damage("index-garbage", garble_index, CorruptError, ("d/", "restore the folder from a copy"), "ocdbt"),
    Damage("values-garbage", garble_values, CorruptError, ("tensor 'table', chunk [0, 0]", "/d/"), "ocdbt"),
    Damage("database-truncated", cut_database, CorruptError, ("d/", "restore the folder from a copy"), "ocdbt"),
    Damage("database-lost", lose_database, CorruptError, ("d/", "restore the folder from a copy"), "ocdbt"),
    Damage(
        "manifest-garbage", flip("manifest.ocdbt"), CorruptError, ("manifest.ocdbt",), "ocdbt",
    ),
    Damage(
        "unsupported-codec",
        edit("params.kernel/.zarray", '"compressor":null', '"compressor":{"id":"nope"}'),
        FormatError, ("'params/kernel'", "nope"),
    ),
    Damage(
        "absurd-shape", edit("params.kernel/.zarray", '"shape":[16,8]', '"shape":[4611686018427387904,8]'),
        FormatError, ("'params/kernel'",),
    ),
    Damage(
        "negative-shape", edit("params.kernel/.zarray", '"shape":[16,8]', '"shape":[-16,8]'),
        FormatError, ("params.kernel/.zarray",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=[d.name for d in DAMAGE])
def test_damaged_source(damage, saved, tmp_path, capsys):
    src = Path(shutil.copytree(saved[damage.of], tmp_path / "src"))
    damage.do(src)
    refused(src, tmp_path / "dst", damage.error, *damage.texts)
    refused_by_command(capsys, src, tmp_path / "dst", *damage.texts)


def test_source_is_missing(tmp_path, capsys):
    text = f"{tmp_path}/src does not exist; expected the directory of a checkpoint"
    refused(tmp_path / "src", tmp_path / "dst", StorageError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "'' is no path; expected the directory of a checkpoint"),
        ("a\0b", "is no path; expected the directory of a checkpoint"),
        ("gs://bucket/c", "gs://bucket/c: reading from gs:// is not supported yet; copy the checkpoint"),
        ("file://a", "should be file:// with an absolute path"),
        ("x" * 5000, "File name too long; choose a shorter name"),
        (None, "the source is None; expected a path"),
        (7, "the source is 7; expected a path"),
    ],
)  # fmt: skip
def test_source_is_no_usable_path(source, text, tmp_path):
    with pytest.raises(StorageError) as caught:
        reshard.api.convert(source, tmp_path / "dst")
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_source_leads_in_a_circle(tmp_path, capsys):
    (tmp_path / "src").symlink_to("src")
    text = "Too many levels of symbolic links; remove the symbolic link"
    refused(tmp_path / "src", tmp_path / "dst", StorageError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


def test_source_is_no_checkpoint(tmp_path, capsys):
    (tmp_path / "src").mkdir()
    (tmp_path / "file").write_text("x")
    text = (
        "is not a checkpoint of a known format; looked for Orbax (_METADATA, _CHECKPOINT_METADATA"
    )
    refused(tmp_path / "src", tmp_path / "dst", NotACheckpointError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)
    text += ", orbax.checkpoint); it is a file, expected a directory"
    refused(tmp_path / "file", tmp_path / "dst", NotACheckpointError, text)
    refused_by_command(capsys, tmp_path / "file", tmp_path / "dst", text)


def test_source_is_a_whole_training_run(source, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copytree(source, tmp_path / "run" / "9")
    shutil.copytree(source, tmp_path / "run" / "12")
    text = f"it holds steps of a training run, so name one of them: {tmp_path}/run/12"
    refused(tmp_path / "run", tmp_path / "dst", NotACheckpointError, text)


def test_source_is_half_written(source, tmp_path, capsys):
    temporary = source.rename(tmp_path / "src.orbax-checkpoint-tmp-17")
    text = "is a temporary folder of a save that was never committed"
    refused(temporary, tmp_path / "dst", IncompleteCheckpointError, text)
    refused_by_command(capsys, temporary, tmp_path / "dst", text)


def test_names_that_collide_once_joined(tmp_path, capsys):
    save_pytree(tmp_path / "src", {"a.b": {"c": np.arange(3)}, "a": {"b.c": np.arange(3) + 5}})
    text = "the paths ('a', 'b.c') and ('a.b', 'c') both become 'a.b.c' once joined"
    refused(tmp_path / "src", tmp_path / "dst", FormatError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


def test_names_that_lead_elsewhere(tmp_path):
    (tmp_path / "src").mkdir()
    write_tree(tmp_path / "src", [["../../evil"]])
    refused(tmp_path / "src", tmp_path / "dst", FormatError, "'../../evil'", "cannot name files")


@pytest.fixture
def one_task_at_a_time(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options under which something can happen between two tasks, however small they are."""
    monkeypatch.setattr("reshard.engine.tasks.BATCH_TASKS", 1)
    return {"workers": 1}


@pytest.mark.parametrize("kind", ["plain", "zstd"])
def test_source_vanishes_midway(kind, saved, tmp_path, one_task_at_a_time):
    source = Path(shutil.copytree(saved[kind], tmp_path / "src"))

    def vanish(_: Progress) -> None:
        shutil.rmtree(source, ignore_errors=True)

    with pytest.raises(ReshardError) as caught:
        reshard.api.convert(source, tmp_path / "dst", progress=vanish, **one_task_at_a_time)
    assert str(source) in str(caught.value) or "not stored" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# ---- the layout ----

NAMES = ["params/kernel", "params/bias", "table", "count", "wave", "key"]


def rules(*entries: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    return {"mesh": {"axes": ["x", "y"], "shape": [4, 2]}, "rules": list(entries), **sections}


@pytest.mark.parametrize(
    ("layout", "texts"),
    [
        (
            rules({"match": "kernel", "axes": [None, "modle"]}),
            ("rules[0] 'kernel'", "'modle' not in the mesh (x=4, y=2)"),
        ),
        (rules({"match": "kernel", "axis": ["x"]}), ("rules[0]", "axis", "match, axes")),
        ({"meshes": {}, "rules": []}, ("meshes", "mesh, rules, partitions, unmatched")),
        (rules({"match": "ker(nel", "axes": ["x"]}), ("rules[0]", "'ker(nel'", "regular expression")),
        (
            rules({"match": "kernel", "axes": ["x", None, "y"]}),
            ("'params/kernel' of shape [16, 8]", "more axes than dimensions", "for 2"),
        ),
        (
            rules({"match": "bias", "axes": [["x", "y"]]}, {"match": "count", "axes": ["x"]}),
            ("'count'", "6", "'x'", "4", "rules[1]"),
        ),
        (rules({"match": "kernel", "axes": ["x", "x"]}), ("'kernel'", "'x'")),
        (rules(unmatched="error"), ("matches no rule of", "'unmatched: error'")),
        (rules(partitions=[{"match": "bias", "fixed_shards": 2, "axis": 3}]),
            ("'params/bias' of shape [8]", "splits axis 3, which it does not")),
        ({"rules": [{"match": "kernel", "axes": ["x"]}]}, ("but there is no mesh", "pass --mesh")),
    ],
)  # fmt: skip
def test_layout_that_makes_no_sense(layout, texts, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", LayoutError, *texts, layout=layout)
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(layout))
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=["--layout", file])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("l.yaml", "mesh: {axes: [x, shape: [2]", ("l.yaml:2: not YAML: did not find expected",)),
        ("l.yaml", "rules: [\x00]", ("l.yaml",)),
        ("l.json", '{"mesh": ', ("l.json", "1")),
        ("l.yaml", "- a\n- b\n", ("l.yaml", "expected")),
        ("l.yaml", "", ("l.yaml", "expected")),
    ],
)
def test_layout_file_that_cannot_be_read(name, text, said, source, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    refused(source, tmp_path / "dst", LayoutError, *said, layout=tmp_path / name)
    refused_by_command(capsys, source, tmp_path / "dst", *said, args=["--layout", tmp_path / name])


def test_layout_file_that_is_missing(source, tmp_path, capsys):
    text = str(tmp_path / "none.yaml")
    refused(source, tmp_path / "dst", ReshardError, text, layout=tmp_path / "none.yaml")
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--layout", text])


def test_layout_that_is_none(source, tmp_path):
    text = (
        "layout is 7; expected the path of a layout file, its content as a mapping, or a LayoutMap"
    )
    refused(source, tmp_path / "dst", LayoutError, text, layout=7)
    refused(source, tmp_path / "dst", LayoutError, "mesh is 8; expected a DeviceMesh", mesh=8)


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ("data", "data=4,model=2"),
        ("data=x", "data=4,model=2"),
        ("=3", "data=4,model=2"),
        ("", "data=4,model=2"),
        ("data=0", "each size of a mesh must be at least 1, but the shape is [0]"),
        ("data=2,data=4", "a mesh's axis names must differ, but are ['data', 'data']"),
    ],
)
def test_mesh_that_makes_no_sense(mesh, text, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", LayoutError, text, mesh=mesh)
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--mesh", mesh])


def test_layout_rule_that_matches_nothing_is_a_warning(source, tmp_path, capsys):
    layout = rules({"match": "kernal", "axes": ["x"]}, {"match": "kernel", "axes": ["x"]})
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    report = reshard.api.convert(source, tmp_path / "dst", layout=tmp_path / "layout.json")
    (warning,) = report.warnings
    assert "rules[0] 'kernal'" in warning
    assert "matches no tensor" in warning
    args = ["convert", source, tmp_path / "dst2", "--layout", tmp_path / "layout.json"]
    assert run(list(map(str, args))) == 0
    printed = capsys.readouterr()
    assert "'kernal'" in printed.out + printed.err


# ---- changes on the way ----


@pytest.mark.parametrize(
    ("options", "args", "texts"),
    [
        ({"select": ["parms/"]}, ["--select", "parms/"],
            ("--select 'parms/' matches none of the 7 names it could apply to (", "correct or remove it")),
        ({"drop": ["^opt"]}, ["--drop", "^opt"], ("--drop '^opt' matches none of the 7 names",)),
        ({"select": ["table"], "drop": ["count"]}, ["--select", "table", "--drop", "count"],
            ("--drop 'count' matches none of the 1 names it could apply to (table)",)),
        ({"rename": [("nothing", "x")]}, ["--rename", "nothing=x"], ("--rename 'nothing' matches none",)),
        ({"cast": [("^name$", "int8")]}, ["--cast", "^name$=int8"],
            ("--cast '^name$' matches none of the 6 names",)),
        ({"select": ["("]}, ["--select", "("], ("--select '(' is no regular expression", "escape")),
        ({"drop": ["."]}, ["--drop", "."],
            ("nothing is left to write: select and drop rules keep none of the 6 tensors; loosen them",)),
        ({"select": ["^name$"]}, ["--select", "^name$"], ("keep none of the 6 tensors",)),
        ({"rename": [("kernel|bias", "x")]}, ["--rename", "kernel|bias=x"],
            ("'params/bias' and 'params/kernel' would both be written as 'params/x'", "rename or drop one of them")),
        ({"rename": [("^count$", "table")]}, ["--rename", "^count$=table"],
            ("would both be written as 'table'",)),
        ({"rename": [("^count$", "table/count")]}, ["--rename", "^count$=table/count"],
            ("'count' would be written as 'table/count', but 'table' is a leaf itself",)),
        ({"rename": [("^count$", "")]}, ["--rename", "^count$="],
            ("'count' would be renamed to '', which is no usable name",)),
        ({"rename": [("^count$", "../count")]}, ["--rename", "^count$=../count"],
            ("'count' would be renamed to '../count', which is no usable name",)),
        ({"rename": [("^count$", "/etc/count")]}, ["--rename", "^count$=/etc/count"],
            ("'/etc/count', which is no usable name",)),
        ({"rename": [("^count$", r"\2")]}, ["--rename", r"^count$=\2"],
            ("the replacement cannot be made: invalid group reference", "the pattern has 0 groups")),
        ({"rename": [("^count$", "n" * 300)]}, ["--rename", "^count$=" + "n" * 300],
            ("needs a file name of 300 bytes, but file systems take 255 at most",)),
        ({"rename": [("^count$", "_METADATA")]}, ["--rename", "^count$=_METADATA"],
            ("'_METADATA'", "metadata needs")),
        ({"rename": [("^count$", "params.kernel")]}, ["--rename", "^count$=params.kernel"],
            ("Orbax's dotted name 'params.kernel'", "rename one on the way (--rename)")),
        ({"cast": [("kernel", "float33")]}, ["--cast", "kernel=float33"],
            ("--cast 'kernel'='float33': no such dtype; expected one of:", "bfloat16")),
        ({"cast": [("count|table", "float16")]}, ["--cast", "count|table=float16"],
            ("matches 'count' of dtype int32: int to float is done only when asked for by name", "--cast 'count=float16'")),
        ({"cast": [("params", "int8")]}, ["--cast", "params=int8"],
            ("of dtype float32: float to int is done only when asked for by name",)),
        ({"cast": [("^wave$", "float32")]}, ["--cast", "^wave$=float32"],
            ("matches 'wave' of dtype complex64: the imaginary part would be lost; narrow the pattern",)),
        ({"cast": [("key", "uint8")]}, ["--cast", "key=uint8"],
            ("matches 'key', which is a PRNG key: its bits have no numeric meaning",)),
    ],
)  # fmt: skip
def test_changes_that_make_no_sense(options, args, texts, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", (PlanError, FormatError), *texts, **options)
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=args)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"select": "params"}, "select is 'params'; expected a list of regular expressions"),
        ({"drop": [3]}, "drop is [3]; expected a list of regular expressions"),
        ({"drop": 3}, "drop is 3; expected a list of regular expressions"),
        ({"rename": ["ab"]}, "rename is ['ab']; expected pairs of a regular expression and a replacement"),
        ({"rename": "ab"}, "rename is 'ab'; expected pairs"),
        ({"cast": [("a", "b", "c")]}, "expected pairs of a regular expression and a dtype"),
        ({"cast": {"a": 3}}, "cast is {'a': 3}; expected pairs"),
    ],
)  # fmt: skip
def test_changes_of_the_wrong_kind(options, text, source, tmp_path):
    refused(source, tmp_path / "dst", PlanError, text, **options)


def test_integers_become_floats_when_asked_for_by_name(source, tmp_path):
    reshard.api.convert(source, tmp_path / "dst", cast=[("^count$", "float32")])
    dtypes = {t.spec.name: t.spec.dtype for t in reshard.api.inspect(tmp_path / "dst").tensors}
    assert dtypes["count"] == "float32"


# ---- limits and forms ----


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_memory": 0}, "max_memory is 0; expected a whole number of at least 1 (bytes, such as 512MiB)"),
        ({"max_memory": -5}, "max_memory is -5; expected a whole number of at least 1"),
        ({"max_memory": 1.5}, "max_memory is 1.5; expected a whole number of at least 1"),
        ({"max_memory": "much"}, "max_memory: 'much' is not a size in bytes; expected a number with a unit"),
        ({"max_memory": "0"}, "max_memory is 0; expected a whole number of at least 1"),
        ({"max_memory": "-1GiB"}, "max_memory: '-1GiB' is not a size in bytes"),
        ({"workers": 0}, "workers is 0; expected a whole number of at least 1 (tasks at once, such as 2)"),
        ({"workers": -1}, "workers is -1; expected a whole number of at least 1"),
        ({"workers": True}, "workers is True; expected a whole number"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0; expected a whole number of at least 1 (bytes, such as 256MiB)"),
        ({"chunk_bytes": "big"}, "chunk_bytes: 'big' is not a size in bytes"),
        ({"compression": "lzma"}, "compression 'lzma' is not known; expected none, zstd[:level up to 22], gzip"),
        ({"compression": "zstd:x"}, "compression 'zstd:x': the level must be a whole number"),
        ({"compression": "zstd:99"}, "compression 'zstd:99' is not known"),
        ({"compression": None}, "compression None is not known"),
        ({"style": "v2"}, "style is 'v2'; expected one of None, 'v0', 'v1'"),
        ({"verify": "maybe"}, "verify is 'maybe'; expected one of 'written', 'readback'"),
    ],
)  # fmt: skip
def test_limits_and_forms_that_make_no_sense(options, text, source, tmp_path):
    refused(source, tmp_path / "dst", PlanError, text, **options)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--max-memory", "0"], "max_memory is 0"),
        (["--chunk-bytes", "0"], "chunk_bytes is 0"),
        (["--compression", "lzma"], "compression 'lzma' is not known"),
    ],
)
def test_limits_of_the_command(args, text, source, tmp_path, capsys):
    refused_by_command(capsys, source, tmp_path / "dst", text, args=args)


@pytest.mark.parametrize("kind", ["plain", "zstd", "ocdbt"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("workers", [1, 4])
def test_memory_too_small_names_the_smallest_that_works(
    kind, compression, workers, saved, tmp_path, capsys
):
    options = {"compression": compression, "workers": workers, "mesh": "data=2,model=4"}
    error = refused(
        saved[kind], tmp_path / "dst", MemoryBudgetError, "needs at least", "but 0.0009766 MiB are allowed",
        max_memory=1 << 10, **options,
    )  # fmt: skip
    assert isinstance(error, MemoryBudgetError)
    smallest = error.smallest_bytes
    assert f"allow --max-memory {smallest >> 20}MiB" in str(error)
    args = ["--max-memory", "1KiB", "--compression", compression]
    text = f"allow --max-memory {smallest >> 20}MiB"
    refused_by_command(capsys, saved[kind], tmp_path / "dst", text, args=args)
    converts(saved[kind], tmp_path / "dst", max_memory=smallest, **options)


def test_absurdly_small_chunks(tmp_path, capsys):
    write_item(tmp_path / "src", {"big": (np.zeros(2, np.int8), zarr2([2]))})
    edit("big/.zarray", '"chunks":[2]', '"chunks":[1073741824]')(tmp_path / "src")
    edit("big/.zarray", '"shape":[2]', '"shape":[1073741824]')(tmp_path / "src")
    text = "'big' of shape [1073741824] would be written in 1073741824 chunks"
    refused(tmp_path / "src", tmp_path / "dst", PlanError, text, "--chunk-bytes", chunk_bytes=1)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text, args=["--chunk-bytes", 1])


# ---- the target ----


@pytest.mark.parametrize("kind", ["checkpoint", "empty folder", "file", "link", "dangling link"])
def test_target_exists(kind, source, tmp_path, capsys):
    target = tmp_path / "dst"
    make(kind, target, source)
    text = f"the target {str(target)!r} exists already and was left untouched; choose another, or pass --overwrite"
    refused(source, target, TargetExistsError, text)
    refused_by_command(capsys, source, target, text)


def make(kind: str, target: Path, source: Path) -> None:
    other = target.with_name("other")
    if kind == "checkpoint":
        shutil.copytree(source, target)
    elif kind == "empty folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("precious")
    elif kind == "link":
        shutil.copytree(source, other)
        target.symlink_to(other)
    else:
        target.symlink_to(other)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("file", "no folder"), ("link", "a symbolic link"), ("dangling link", "a symbolic link")],
)
def test_overwriting_what_is_no_folder(kind, what, source, tmp_path, capsys):
    target = tmp_path / "dst"
    make(kind, target, source)
    text = f"the target {str(target)!r} is {what} and was left untouched; --overwrite replaces only folders"
    refused(source, target, TargetExistsError, text, overwrite=True)
    refused_by_command(capsys, source, target, text, args=["--overwrite"])


def test_overwriting_a_folder_of_something_else(source, tmp_path, capsys):
    (tmp_path / "dst" / "thesis").mkdir(parents=True)
    (tmp_path / "dst" / "thesis" / "chapter1.tex").write_text("It was")
    text = "is a folder that holds something else than a checkpoint, and was left untouched"
    refused(source, tmp_path / "dst", TargetExistsError, text, overwrite=True)
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--overwrite"])


@pytest.mark.parametrize("kind", ["checkpoint", "empty folder"])
def test_overwriting_a_checkpoint(kind, source, tmp_path):
    make(kind, tmp_path / "dst", source)
    if kind == "checkpoint":
        (tmp_path / "dst" / "old").write_text("of the old one")
    converts(source, tmp_path / "dst", overwrite=True)
    assert not (tmp_path / "dst" / "old").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]


def test_failed_overwriting_keeps_the_old(source, tmp_path, capsys):
    (source / "params.kernel" / "0.0").unlink()
    shutil.copytree(source, tmp_path / "dst")
    refused(source, tmp_path / "dst", CorruptError, "not stored", overwrite=True)
    refused_by_command(capsys, source, tmp_path / "dst", "not stored", args=["--overwrite"])


def test_target_is_the_source(source, tmp_path, capsys):
    (tmp_path / "link").symlink_to(source)
    for name in ("src", "../" + tmp_path.name + "/src", "link"):
        text = f"the target {str(tmp_path / name)!r} is the source itself; choose another target"
        for overwrite in (False, True):
            refused(source, tmp_path / name, StorageError, text, overwrite=overwrite)
        refused_by_command(capsys, source, tmp_path / name, text)


def test_target_inside_the_source(source, tmp_path, capsys):
    (tmp_path / "link").symlink_to(source)
    for target in (source / "dst", source / "params.kernel" / "dst", tmp_path / "link" / "dst"):
        text = f"the target {str(target)!r} lies inside the source {str(source)!r}; choose a target outside of it"
        refused(source, target, StorageError, text)
        refused_by_command(capsys, source, target, text)


def test_source_inside_the_target(source, tmp_path, capsys):
    text = f"the source {str(source)!r} lies inside the target {str(tmp_path)!r}; choose another target"
    refused(source, tmp_path, StorageError, text, overwrite=True)
    refused_by_command(capsys, source, tmp_path, text, args=["--overwrite"])


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "'' is no path; expected the folder to write"),
        ("a\0b", "is no path; expected the folder to write"),
        ("gs://bucket/c", "gs://bucket/c: writing to gs:// is not supported yet; write to a local disk"),
        ("file://a", "should be file:// with an absolute path"),
        (None, "the target is None; expected a path"),
        (".", "exists already"),
        ("/", "lies inside the target"),
    ],
)  # fmt: skip
def test_target_is_no_usable_path(target, text, source, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with nothing_changes(source, tmp_path / "here"), pytest.raises(StorageError) as caught:
        reshard.api.convert(source, target)
    assert text in str(caught.value)


def test_paths_as_urls(source, tmp_path):
    converts(source, tmp_path / "dst")
    reshard.api.convert(f"file://{source}", f"file://{tmp_path}/dst2")
    assert reshard.api.verify(tmp_path / "dst", tmp_path / "dst2").differences == 0
    refused(f"file://{source}", f"file://{source}/dst", StorageError, "lies inside the source")


def test_target_name_is_too_long(source, tmp_path, capsys):
    for name in ("n" * 250, "n" * 300):
        text = "File name too long; choose a shorter name"
        refused(source, tmp_path / name, StorageError, text)
        refused_by_command(capsys, source, tmp_path / name, text)


def test_a_file_where_a_folder_should_be(source, tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    target = tmp_path / "file" / "deeper" / "dst"
    text = f"the target {str(target)!r} lies below {str(tmp_path / 'file')!r}, which should be a folder but is none"
    refused(source, target, StorageError, text)
    refused_by_command(capsys, source, target, text)
    assert (tmp_path / "file").read_text() == "precious"


# ---- the system says no ----


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Without the rights of root, if this process has them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(saved: Mapping[str, Path]) -> Iterator[Path]:
    """A folder that every user may enter, with a source in it, after a first run loaded all code."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        shutil.copytree(saved["plain"], folder / "src")
        converts(folder / "src", folder / "first")
        shutil.rmtree(folder / "first")
        yield folder
    finally:
        shutil.rmtree(folder)


def test_no_permission_to_write(open_folder, capsys):
    (open_folder / "locked").mkdir()
    (open_folder / "locked").chmod(0o555)
    for target in (open_folder / "locked" / "dst", open_folder / "locked" / "deep" / "dst"):
        text = f"cannot create '{open_folder}/locked"
        remedy = "Permission denied; grant this user the permission"
        with ordinary_user():
            refused(open_folder / "src", target, StorageError, text, remedy)
            refused_by_command(capsys, open_folder / "src", target, text, remedy)


@pytest.mark.parametrize("name", [".", "_METADATA", "params.kernel/.zarray", "params.kernel/0.0"])
def test_no_permission_to_read(name, open_folder, capsys):
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    place, source, target = open_folder / "src" / name, open_folder / "src", open_folder / "out/dst"
    place.chmod(0)
    with ordinary_user():
        for attempt in ("api", "command"):
            if attempt == "api":
                with pytest.raises(StorageError) as caught:
                    reshard.api.convert(source, target)
                said = str(caught.value)
            else:
                assert run(["convert", str(source), str(target)]) == 1
                said = capsys.readouterr().err
            assert str(place) in said
            assert "Permission denied" in said
            assert list(target.parent.iterdir()) == []
    place.chmod(0o755)


def test_disk_is_too_small(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reshard.engine.conversion.free_bytes", lambda _: 1 << 10)
    texts = (
        f"'{tmp_path}/dst' needs 16.6 KiB, but its file system has only 1.00 KiB free",
        "--select, --cast",
    )
    refused(source, tmp_path / "dst", StorageError, *texts)
    refused_by_command(capsys, source, tmp_path / "dst", *texts)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("ocdbt", [False, True])
def test_disk_becomes_full(compression, ocdbt, source, tmp_path, capsys, limit_file_sizes):
    """The system refuses to write beyond a size; the database writer has files of its own."""
    texts = (
        ("cannot store chunk [0, 0] of 'table'", "make room there, or choose another target")
        if ocdbt
        else (f"{tmp_path}/.dst.reshard-partial", "File too large; raise the limit of file sizes")
    )
    refused(source, tmp_path / "dst", StorageError, *texts, compression=compression, ocdbt=ocdbt)
    args = ["--compression", compression, *(["--ocdbt"] if ocdbt else [])]
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=args)


@pytest.fixture
def limit_file_sizes() -> Iterator[None]:
    """No file may grow beyond 4 KiB (the table is larger)."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 10, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("call", ["pwrite", "write", "ftruncate", "fsync", "mkdir"])
@pytest.mark.parametrize("compression", ["none", "keep"])
def test_every_call_that_may_find_the_disk_full(call, compression, saved, tmp_path, monkeypatch):
    real, calls = getattr(os, call), []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    source = Path(shutil.copytree(saved["zstd"], tmp_path / "src"))
    monkeypatch.setattr(os, call, full)
    try:
        reshard.api.convert(source, tmp_path / "dst", compression=compression)
    except StorageError as error:
        assert "No space left on device; free space on that file system" in str(error)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]
    else:
        assert len(calls) <= 2
        monkeypatch.undo()
        assert reshard.api.verify(source, tmp_path / "dst").differences == 0


# ---- a run that ends early ----

SLOW = """
import os, sys, time
from reshard.cli import main
write, done = os.pwrite, []

def slow(*args):
    done.append(args)
    if len(done) == 4:
        print("midway", flush=True)
    if len(done) >= 4:
        time.sleep(0.3)
    return write(*args)

os.pwrite = slow
main()
"""


def start_slowly(source: Path, target: Path, *args: str) -> subprocess.Popen[str]:
    """A conversion in a process of its own that has written a part, and goes on very slowly."""
    command = [sys.executable, "-c", SLOW, "convert", str(source), str(target), *args]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "midway\n"
    return child


def command(*args: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "reshard", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_killed_and_started_again(source, tmp_path):
    target, before = tmp_path / "dst", fingerprint(source)
    child = start_slowly(source, target)
    child.kill()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    assert not target.exists()
    assert leftovers(tmp_path) == [".dst.reshard-partial"]
    with pytest.raises(NotACheckpointError):
        reshard.api.inspect(tmp_path / ".dst.reshard-partial")
    done = command("convert", source, target)
    assert done.returncode == 0, done.stderr
    assert reshard.api.verify(source, target).differences == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]
    assert fingerprint(source) == before


def test_killed_while_overwriting(source, tmp_path):
    target = Path(shutil.copytree(source, tmp_path / "dst"))
    before = fingerprint(target)
    child = start_slowly(source, target, "--overwrite")
    child.kill()
    child.communicate(timeout=30)
    assert fingerprint(target) == before
    converts(source, target, overwrite=True)


def test_second_run_on_one_target(source, tmp_path):
    target = tmp_path / "dst"
    child = start_slowly(source, target)
    try:
        second = command("convert", source, target)
    finally:
        child.communicate(timeout=60)
    assert second.returncode == 1
    assert (
        f"another run (process {child.pid}) is writing '{target}' now; wait for it" in second.stderr
    )
    assert "Traceback" not in second.stderr
    assert child.returncode == 0
    assert reshard.api.verify(source, target).differences == 0


def test_interrupted(source, tmp_path):
    child = start_slowly(source, tmp_path / "dst")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted; no target was published" in said
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def test_the_command_itself(source, tmp_path):
    (source / "params.kernel" / "0.0").unlink()
    with nothing_changes(source, tmp_path / "dst"):
        done = command("convert", source, tmp_path / "dst")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: tensor 'params/kernel', chunk [0, 0]: not stored" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_answers_in_json(source, tmp_path):
    done = command("convert", source, source / "dst", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "StorageError"
    assert "lies inside the source" in error["message"]
