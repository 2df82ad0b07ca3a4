"""Live arrays are proved against an identity: each process its own shards, whatever the mesh."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh

import reshard
from reshard.saving import plan
from tests.orbax_trees import mesh, put
from tests.process_groups import run_group
from tests.saving.prove_member import weights

LARGE = (2048, 1536)
"""12 MiB of float32: 8 nodes of 512 × 768 elements."""


def large() -> Any:
    return np.random.default_rng(9).normal(size=LARGE).astype(np.float32)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the identity of one large tensor."""
    folder = tmp_path_factory.mktemp("known")
    reshard.save(folder / "ckpt", {"w": large()})
    reshard.identify(folder / "ckpt", out=folder / "identity")
    return folder / "identity"


ROWS = mesh((8,), ("x",))
MESHES = {
    "rows": (ROWS, ("x",)),
    "columns": (ROWS, (None, "x")),
    "both": (mesh((4, 2), ("x", "y")), ("x", "y")),
    "turned": (mesh((2, 4), ("x", "y")), ("y", "x")),
    "replicas": (mesh((4, 2), ("x", "y")), ("x",)),
    "whole": (ROWS, ()),
    "backwards": (Mesh(np.array(jax.devices())[::-1], ("x",)), ("x",)),
}


@pytest.mark.parametrize("how", MESHES)
def test_one_process_proves_every_byte_over_any_mesh(how: str, known: Path) -> None:
    on, axes = MESHES[how]
    report = reshard.prove({"w": put(large(), *axes, on=on)}, known)
    assert report.is_ok
    assert not report.has_differences
    (found,) = report.tensors
    assert (found.nbytes, found.proved_bytes, found.cut_bytes) == (12 << 20, 12 << 20, 0)
    assert (report.nbytes, report.proved_bytes, report.absent) == (12 << 20, 12 << 20, 0)


@pytest.mark.parametrize("how", MESHES)
def test_one_flipped_bit_is_found_and_named(how: str, known: Path) -> None:
    on, axes = MESHES[how]
    other = large()
    other.view(np.uint32)[1025, 800] ^= 1
    report = reshard.prove({"w": put(other, *axes, on=on)}, known)
    assert not report.is_ok
    assert report.has_differences
    (found,) = report.tensors
    assert found.differs == (reshard.Box((1024, 768), (1536, 1536)),)
    assert (found.different_bytes, found.proved_bytes) == (3 << 19, (12 << 20) - (3 << 19))
    assert report.sentences == (
        "'w' differs from the identity in [1024:1536, 768:1536], 1.50 MiB in all; load it anew from a copy that reshard verify "
        "--identity accepts",
    )


def test_what_is_cut_is_said() -> None:
    found = reshard.ArrayProof(
        "w", 2 << 20, cut_bytes=2 << 20, needed=reshard.Box((0, 0), (512, 2048))
    )
    assert not found.is_ok
    report = reshard.ProofReport("0" * 64, (found,), 0, 1.0)
    assert not report.has_differences
    assert report.sentences == (
        "2.00 MiB of 'w' cannot be proved from the shards of this process, which cut nodes of the identity; a process with "
        "[0:512, 0:2048] could",
    )


def test_all_kinds_of_leaves(tmp_path: Path) -> None:
    table = reshard.ShardedVariable.split(
        np.arange(13 * 4, dtype=np.float32).reshape(13, 4), 5, "table", partition_strategy="mod"
    )
    tree = {
        "int4": put(np.arange(-8, 8).astype(ml_dtypes.int4), "data"),
        "bool": put(np.arange(16) % 3 == 0, "data"),
        "bf16": {"a": put(np.full((8, 8), np.nan, ml_dtypes.bfloat16), None, "model")},
        "complex": np.arange(6, dtype=np.complex128),
        "scalar": jnp.int32(7),
        "number": 3.5,
        "empty": np.zeros((0, 4), np.float32),
        "keys": jax.random.split(jax.random.key(1), 8),
        "table": table,
        "note": "text",
        "nothing": None,
    }
    reshard.save(tmp_path / "ckpt", tree)
    identified = reshard.identify(tmp_path / "ckpt")
    report = reshard.prove(tree, identified, root=identified.root.upper())
    assert report.is_ok
    assert [t.name for t in report.tensors] == sorted(identified.tensors)
    swapped = np.arange(6, dtype=">c16")
    assert reshard.prove({"complex": swapped}, identified).is_ok
    assert (
        reshard.prove({"bf16/a": tree["bf16"]["a"]}, identified).absent == len(report.tensors) - 1
    )
    upper_bits = np.arange(-8, 8).astype(ml_dtypes.int4)
    upper_bits.view(np.uint8)[:] ^= 0xF0
    assert reshard.prove({"int4": upper_bits}, identified).is_ok
    no_bool = np.array([2] * 16, np.uint8).view(bool)
    (found,) = reshard.prove({"bool": no_bool}, identified).tensors
    assert found.different_bytes == 16
    assert json.loads(json.dumps(report.to_dict()))["root"] == identified.root


def test_arrays_of_another_name_dtype_or_shape(known: Path) -> None:
    report = reshard.prove({"v": jnp.zeros(3), "w": large().astype(ml_dtypes.bfloat16)}, known)
    assert report.sentences == (
        "'v' is no tensor of the identity; give arrays by the names that their checkpoint has",
        "'w' is bfloat16 [2048, 1536], but the identity has float32 [2048, 1536]; compare arrays before they are cast or reshaped, or "
        "with the identity of a checkpoint that was",
    )
    assert not report.is_ok
    assert report.has_differences
    shown = repr(report)
    assert shown.startswith("ProofReport(2 tensors, 0 B of 6.00 MiB proved in ")
    assert shown.endswith(f"\n  root: {report.root}")


def test_the_report_is_short(known: Path) -> None:
    report = reshard.prove({"w": large()}, known)
    assert re.fullmatch(
        r"ProofReport\(1 tensor, 12\.0 MiB of 12\.0 MiB proved in \d+\.\d s\)\n  root: [0-9a-f]{64}",
        repr(report),
    )


def test_another_root_or_no_files(known: Path, tmp_path: Path) -> None:
    with pytest.raises(
        reshard.VerificationError,
        match=rf"^{known}/identity\.json has the root [0-9a-f]{{64}}, but expected is {'0' * 64}; take the files that belong to that root$",
    ):
        reshard.prove({"w": large()}, known / "identity.json", root="0" * 64)
    with pytest.raises(
        reshard.MissingError,
        match=r"identity\.json does not exist: expected a folder with the files of an identity; reshard identify --out writes them$",
    ):
        reshard.prove({"w": large()}, tmp_path)
    shutil.copytree(known, tmp_path / "copy")
    tree = tmp_path / "copy" / "identity.tree"
    data = bytearray(tree.read_bytes())
    data[-1] ^= 1
    tree.write_bytes(data)
    with pytest.raises(reshard.CorruptError, match="its hashes of 'w' do not give its top"):
        reshard.prove({"w": large()}, tmp_path / "copy")
    with pytest.raises(reshard.StorageError, match=r"^the identity is 5; expected a path$"):
        reshard.prove({"w": large()}, 5)
    assert not reshard.prove(large(), known).is_ok  # its name is ''


def test_two_paths_with_one_name_are_refused(known: Path, tmp_path: Path) -> None:
    tree = {"a/b": large(), "a": {"b": large()}}
    words = r"leaves \('a', 'b'\) and \('a/b',\) both have the name 'a/b', so a reader would mix them up; rename one$"
    with pytest.raises(reshard.TreeError, match=f"^the tree cannot be proved: {words}"):
        reshard.prove(tree, known)
    with pytest.raises(reshard.TreeError, match=words):
        reshard.save(tmp_path / "ckpt", tree)


def test_an_empty_tree_is_refused(known: Path) -> None:
    with pytest.raises(
        reshard.TreeError, match=r"^the tree is empty \(dict\); expected at least one leaf$"
    ):
        reshard.prove({}, known)


@pytest.mark.parametrize("root", [5, "zz", "", "0" * 63])
def test_a_root_that_is_none_is_refused(root: Any, known: Path) -> None:
    with pytest.raises(reshard.PlanError) as caught:
        reshard.prove({"w": large()}, known, root=root)
    assert str(caught.value) == (
        f"the root is {root!r}; expected a root of 64 hex digits, as reshard identify shows it"
    )


def test_a_root_may_be_written_in_capitals(known: Path) -> None:
    root = json.loads((known / "identity.json").read_text())["root"]
    assert reshard.prove({"w": large()}, known, root=root.upper()).root == root


def test_devices_hand_over_no_more_than_a_node(
    known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted(data: Any, box: Any) -> Any:
        part = jax.lax.dynamic_slice(data, box.start, box.shape)
        taken.append(part.nbytes)
        return part

    monkeypatch.setattr(plan, "on_host", lambda data: isinstance(data, np.ndarray))
    monkeypatch.setattr(plan, "_cut", counted)
    report = reshard.prove({"w": put(large(), on=ROWS)}, known)
    assert report.is_ok
    assert taken == [3 << 19] * 8


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four processes, with two devices each, proves of its rows and columns; a bit of the rows is flipped."""
    folder = tmp_path_factory.mktemp("group")
    reshard.save(folder / "ckpt", weights())
    reshard.identify(folder / "ckpt", write=True)
    printed = run_group(4, ["-m", "tests.saving.prove_member"], str(folder / "ckpt"))
    return [json.loads(lines.splitlines()[-1]) for lines in printed]


@pytest.mark.xdist_group("live-processes")
def test_each_process_proves_its_own(by_processes: list[dict[str, Any]]) -> None:
    """A quarter of the rows, or of the columns, is made of whole nodes; an eighth on one device is not."""
    for number, report in enumerate(by_processes):
        columns, rows = report["tensors"]
        assert (columns["name"], rows["name"]) == ("columns", "rows")
        assert columns["nbytes"] == columns["proved_bytes"] == rows["nbytes"] == 4 << 20
        assert rows["different_bytes"] == (1 << 20 if number == 3 else 0)
        assert rows["proved_bytes"] + rows["different_bytes"] == 4 << 20
    assert by_processes[3]["tensors"][1]["differs"] == [{"start": [1536, 0], "stop": [2048, 512]}]


@pytest.mark.xdist_group("live-processes")
def test_a_process_that_cuts_nodes_says_what_it_would_need(tmp_path: Path) -> None:
    reshard.save(tmp_path / "ckpt", weights())
    reshard.identify(tmp_path / "ckpt", write=True)
    printed = run_group(8, ["-m", "tests.saving.prove_member"], str(tmp_path / "ckpt"))
    for number, lines in enumerate(printed):
        columns, rows = json.loads(lines.splitlines()[-1])["tensors"]
        start = number // 2 * 512
        for found in (columns, rows):
            assert (found["nbytes"], found["cut_bytes"], found["proved_bytes"]) == (
                2 << 20,
                2 << 20,
                0,
            )
        assert rows["needed"] == {"start": [start, 0], "stop": [start + 512, 2048]}
        assert columns["needed"] == {"start": [0, start], "stop": [2048, start + 512]}
