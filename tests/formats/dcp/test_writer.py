"""Distributed checkpoints that are written for torch, refereed by torch: onto other meshes, into an optimizer, by its safe unpickler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.errors import FormatError, PlanError, TargetExistsError
from tests.conformance.torch_dcp_files import read_dcp, unpickled
from tests.emulators.buckets import Bucket
from tests.formats.safetensors.described import described
from tests.oracles.oracle import Oracle
from tests.orbax_trees import save_pytree

pytestmark = pytest.mark.xdist_group("torch")

MESHES: Mapping[str, Any] = {
    "whole": {},
    "rows": {
        "mesh": {"x": 2},
        "rules": [{"match": "deep|/both|/columns$", "axes": ["x"]}],
        "unmatched": "replicate",
        "partitions": [{"match": "uneven.rows$|vector$", "fixed_shards": 3, "axis": 0}],
    },
    "both": {
        "mesh": {"x": 2, "y": 2},
        "rules": [{"match": "/both$|other|deep$", "axes": ["x", "y"]}],
        "unmatched": "replicate",
        "partitions": [{"match": "uneven.columns$", "fixed_shards": 4, "axis": 1}],
    },
}


@pytest.fixture(scope="module")
def together(of_ranks: dict[str, Any], folder: Path) -> Path:
    """The files of a checkpoint that four processes saved."""
    assert of_ranks
    return folder / "together"


@pytest.mark.parametrize("state", ["plain", "strides", "dtypes", "training", "named_training"])
@pytest.mark.parametrize("way", ["orbax", "dcp"])
def test_a_state_dict_comes_back(state: str, way: str, torch: Oracle, tmp_path: Path) -> None:
    """Strides become row-major, and the numbers of a list or a tuple stay numbers."""
    torch.ask("save_dcp", state=state, folder=str(tmp_path / "saved"))
    reshard.convert(tmp_path / "saved", tmp_path / "between", to=way)
    reshard.convert(tmp_path / "between", tmp_path / "again", to="dcp", check="readback")
    wanted = torch.ask("load_dcp", folder=str(tmp_path / "saved"))
    assert len(wanted) > 7
    assert torch.ask("load_dcp", folder=str(tmp_path / "again")) == wanted
    assert reshard.verify(tmp_path / "saved", tmp_path / "again").differences == 0
    assert reshard.verify(tmp_path / "again").differences == 0


def test_dtensors_of_other_meshes_are_loaded(torch: Oracle, together: Path, tmp_path: Path) -> None:
    for name, layout in MESHES.items():
        reshard.convert(together, tmp_path / name, layout=layout or None)
        assert reshard.verify(together, tmp_path / name).differences == 0
    assert len(list((tmp_path / "both").glob("*.distcp"))) == 5
    folders = [str(tmp_path / name) for name in MESHES]
    found = torch.ask("group", action="load_distcp", folders=folders)
    assert found == [{path: [] for path in folders}] * 4


def test_training_goes_on_with_equal_losses(torch: Oracle, tmp_path: Path) -> None:
    """FSDP2 and AdamW in four processes: torch, Orbax, torch."""
    wanted = torch.ask("group", action="train", folders=[str(tmp_path / "saved")])
    reshard.convert(tmp_path / "saved", tmp_path / "orbax", to="orbax")
    layout = {"partitions": [{"match": "weight$", "fixed_shards": 2, "axis": 0}]}
    reshard.convert(tmp_path / "orbax", tmp_path / "again", to="dcp", layout=layout)
    folders = [str(tmp_path / name) for name in ("saved", "again")]
    found = torch.ask("group", action="resume", folders=folders)
    assert found == [[losses, losses] for losses in wanted]
    assert len({loss for losses in wanted for loss in losses}) == 8


def test_torchs_restricted_unpickler_reads_the_metadata(
    torch: Oracle, together: Path, tmp_path: Path
) -> None:
    reshard.convert(together, tmp_path / "made", layout=MESHES["both"])
    found = torch.ask("restricted_metadata", folder=str(tmp_path / "made"))
    assert found["is_same"]
    assert found["version"] == "1.0.0"
    assert found["paths"]["model.uneven.rows"] == ["model", "uneven.rows"]
    assert str(tmp_path).encode() not in b"".join(p.read_bytes() for p in (tmp_path / "made").glob(".m*"))  # fmt: skip


def test_values_are_loaded_as_values(torch: Oracle, tmp_path: Path) -> None:
    group = {
        "lr": 0.25,
        "betas": (0.9, 0.999),
        "fused": None,
        "params": [0, 1],
        "on": True,
        "wide": 2**63,
    }
    state = {"groups": [group], "name": "Adam \u00fc", "none": None, "list": [], "wave": -(2**40)}
    reshard.save(tmp_path / "saved", state)
    reshard.convert(tmp_path / "saved", tmp_path / "made", to="dcp", check="readback")
    empty = {"lr": 0, "betas": [0, 0], "fused": 0, "params": [5, 5], "on": 0, "wide": 0}
    asked: dict[str, Any] = {
        "groups": [empty],
        **dict.fromkeys(("name", "none", "list", "wave"), 0),
    }
    assert torch.ask("load_values", folder=str(tmp_path / "made"), state=asked) == repr(state)
    assert reshard.restore(tmp_path / "made") == {
        **state,
        "groups": [{**group, "betas": [0.9, 0.999]}],
    }


def test_tuples_stay_tuples(torch: Oracle, tmp_path: Path) -> None:
    torch.ask("save_dcp", state="flattened_training", folder=str(tmp_path / "saved"))
    reshard.convert(tmp_path / "saved", tmp_path / "made", layout={"mesh": {"axes": ["x"], "shape": [2]}})  # fmt: skip
    wanted = torch.ask("load_containers", folder=str(tmp_path / "saved"))
    assert wanted["optimizer/param_groups.0.weight.betas"] == "(0.9, 0.999)"
    assert (wanted["sizes"], wanted["betas"]) == ("(1, (2, [3, (4, None)]))", "[0.5]")
    assert torch.ask("load_containers", folder=str(tmp_path / "made")) == wanted
    # Orbax does not tell tuples from lists; those of optimizers are known by name.
    reshard.convert(tmp_path / "saved", tmp_path / "orbax", to="orbax")
    reshard.convert(tmp_path / "orbax", tmp_path / "again", to="dcp")
    found = torch.ask("load_containers", folder=str(tmp_path / "again"))
    by_name = {key for key in wanted if key.endswith("betas") and key != "betas"}
    assert len(by_name) == 4
    assert {key: found[key] for key in by_name} == {key: wanted[key] for key in by_name}


def items(made: Path) -> Iterator[tuple[str, int, bytes]]:
    """The file, the offset and the bytes of each item."""
    metadata = unpickled((made / ".metadata").read_bytes())
    for place in metadata["storage_data"].values():
        data = (made / place["relative_path"]).read_bytes()
        yield place["relative_path"], place["offset"], data[place["offset"] :][: place["length"]]


def test_each_item_is_an_archive_whose_elements_are_aligned(tmp_path: Path) -> None:
    """``unzip`` agrees with every CRC; elements begin at multiples of 64, so that a file can be mapped."""
    tree = {"w": np.arange(77, dtype=np.int16).reshape(7, 11), "b": np.arange(3.0), "n": 3}
    reshard.save(tmp_path / "saved", tree)
    layout = {"partitions": [{"match": "^w$", "fixed_shards": 3, "axis": 0}]}
    reshard.convert(tmp_path / "saved", tmp_path / "made", to="dcp", layout=layout)
    found = list(items(tmp_path / "made"))
    assert [file for file, _, _ in found].count("__0_0.distcp") == 2
    assert {file for file, _, _ in found} == {f"__{n}_0.distcp" for n in range(4)}
    for file, offset, data in found:
        archive = tmp_path / "item.zip"
        archive.write_bytes(data)
        done = subprocess.run(["unzip", "-tq", archive], check=False, capture_output=True)
        assert done.returncode == 0, done.stdout
        assert offset % 64 == 0
        if file != "__3_0.distcp":
            at = data.index(b"archive/data/0") + len("archive/data/0")
            extra = int.from_bytes(data[at - 14 - 2 : at - 14], "little")
            assert (offset + at + extra) % 64 == 0
    assert read_dcp(tmp_path / "made")["w"].tobytes() == tree["w"].tobytes()


def test_the_archive_of_a_huge_tensor_has_sizes_of_eight_bytes() -> None:
    from reshard.formats.torch.archive import open_archive
    from reshard.formats.torch.write_archive import archive_head, archive_tail

    nbytes = 5 << 30
    head, tail = archive_head(b"N.", nbytes), archive_tail(b"N.", nbytes, 7)

    def read(offset: int, count: int) -> bytes:
        behind = offset - len(head) - nbytes
        return tail[behind:][:count] if behind >= 0 else head[offset:][:count]

    archive = open_archive(read, len(head) + nbytes + len(tail), "it")
    record, start = archive.start("data/0")
    assert (record.nbytes, record.crc, start) == (nbytes, 7, len(head))
    assert start % 64 == 0


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    reshard.save(tmp_path / "small", {"w": np.zeros(3, ml_dtypes.int4)})
    with pytest.raises(PlanError) as error:
        reshard.convert(tmp_path / "small", tmp_path / "made", to="dcp")
    assert str(error.value) == (
        "'w' is int4, which tensors of torch do not have; drop it, or cast it to one of bool, int8, int16, int32, int64, uint8, uint16, "
        "uint32, uint64, float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
        "float8_e5m2fnuz, float8_e8m0fnu, float4_e2m1fn_x2"
    )
    save_pytree(tmp_path / "keys", {"w": np.zeros(3), "key": jax.random.key(3)})
    with pytest.raises(FormatError) as refused:
        reshard.convert(tmp_path / "keys", tmp_path / "made", to="dcp")
    assert str(refused.value) == (
        "torch DCP files hold tensors and plain values only, and cannot hold 'key' (a PRNG key); leave them out (drop), or write Orbax (to)"
    )
    reshard.save(tmp_path / "twice", {"a": {"b.c": np.zeros(1)}, "x": {"c": np.zeros(1)}})
    with pytest.raises(PlanError) as twice:
        reshard.convert(tmp_path / "twice", tmp_path / "made", to="dcp", rename=[("^x", "a.b")])
    assert str(twice.value) == (
        "'a/b.c' and 'a.b/c' would both be 'a.b.c' in torch, which joins keys with dots; rename one of them (rename)"
    )
    assert not list(tmp_path.glob("*made*"))


def test_what_torch_saved_is_not_replaced_and_what_was_written_is(
    torch: Oracle, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    reshard.save(first, {"w": np.zeros(3), "n": 1})
    reshard.save(second, {"w": np.ones(4)})
    made = tmp_path / "made"
    reshard.convert(first, made, to="dcp")
    assert reshard.convert(first, made, to="dcp").already_done
    with pytest.raises(TargetExistsError):
        reshard.convert(second, made, to="dcp")
    reshard.convert(second, made, to="dcp", overwrite=True)
    assert sorted(path.name for path in made.iterdir()) == [".metadata", "__0_0.distcp", "slices.json"]  # fmt: skip
    (made / "notes.txt").write_text("mine")
    with pytest.raises(TargetExistsError):
        reshard.convert(first, made, to="dcp", overwrite=True)
    torch.ask("save_dcp", state="floats", folder=str(tmp_path / "saved"))
    with pytest.raises(TargetExistsError):
        reshard.convert(first, tmp_path / "saved", to="dcp", overwrite=True)
    reshard.fingerprint(tmp_path / "saved")  # a record beside it makes it no work of this project
    with pytest.raises(TargetExistsError):
        reshard.convert(first, tmp_path / "saved", to="dcp", overwrite=True)


def test_layouts_are_read_back_from_the_record(tmp_path: Path) -> None:
    layout = {"mesh": {"x": 2}, "rules": [{"match": "w", "axes": ["x"]}]}
    reshard.save(tmp_path / "saved", {"w": np.arange(8.0)})
    reshard.convert(tmp_path / "saved", tmp_path / "made", to="dcp", layout=layout)
    reshard.convert(tmp_path / "made", tmp_path / "again")
    names = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("made", "again")]
    assert names[0] == names[1] == [".metadata", "__0_0.distcp", "__1_0.distcp", "slices.json"]


def test_a_bucket_gets_the_same_bytes(gcs_bucket: Bucket, tmp_path: Path) -> None:
    tree = {"w": np.arange(77.0).reshape(7, 11), "n": 3, "text": "a", "f": ml_dtypes.float8_e5m2(1)}
    reshard.save(tmp_path / "saved", tree)
    options: dict[str, Any] = {
        "to": "dcp",
        "layout": {"partitions": [{"match": "^w$", "fixed_shards": 2, "axis": 1}]},
    }
    reshard.convert(tmp_path / "saved", f"{gcs_bucket.url}/made", **options)
    reshard.convert(tmp_path / "saved", tmp_path / "made", **options)
    for path in (tmp_path / "made").iterdir():
        if path.name != "slices.json":
            stored = bytes(gcs_bucket.store().get(f"made/{path.name}").bytes())
            assert stored == path.read_bytes(), path.name
    assert reshard.verify(tmp_path / "saved", f"{gcs_bucket.url}/made").differences == 0
    assert described(read_dcp(tmp_path / "made")["w"]) == described(tree["w"])
