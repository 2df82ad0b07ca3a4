"""Tensors that are cut over several safetensors files become one tensor again, or the files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import CorruptError, ReshardError
from tests.formats.safetensors.build import dcp_file, file_of

FULL = np.arange(48, dtype="int32").reshape(6, 8)


def shard_file(
    folder: Path, number: int, count: int, tensors: dict[str, Any], **arrays: np.ndarray
) -> str:
    document = {
        "format": "reshard.slices",
        "version": 1,
        "shard": number,
        "shards": count,
        "tensors": tensors,
    }
    data = save(
        {n: np.ascontiguousarray(a) for n, a in arrays.items()},
        {"reshard.slices": json.dumps(document)},
    )
    return file_of(folder, data, f"rank-{number}.safetensors")


def test_pieces_of_torch_become_one_tensor(tmp_path: Path) -> None:
    dcp_file(tmp_path, 1, {"w": (FULL[:3, :5], [0, 0]), "b": (FULL[0], [0])})
    dcp_file(tmp_path, 2, {"w": (FULL[:3, 5:], [0, 5])})
    dcp_file(tmp_path, 3, {"w": (FULL[3:, :5], [3, 0])})
    dcp_file(tmp_path, 4, {"w": (FULL[3:, 5:], [3, 5])})
    restored = reshard.restore(tmp_path)
    np.testing.assert_array_equal(restored["w"], FULL)
    np.testing.assert_array_equal(restored["b"], FULL[0])
    storage = reshard.inspect(tmp_path).tensors["w"].spec.storage
    assert storage.cuts == ((0, 3, 6), (0, 5, 8))


def test_many_small_pieces_are_read_together(tmp_path: Path) -> None:
    values = np.arange(17 * 5, dtype="int16").reshape(17, 5)
    for number in range(17):
        dcp_file(tmp_path, number, {"w": (values[number : number + 1], [number, 0])})
    assert reshard.inspect(tmp_path).tensors["w"].spec.storage.count == 1
    np.testing.assert_array_equal(reshard.restore(tmp_path)["w"], values)


def test_a_replica_is_read_once(tmp_path: Path) -> None:
    for number in (1, 2):
        dcp_file(tmp_path, number, {"b": (FULL[0], [0])})
    np.testing.assert_array_equal(reshard.restore(tmp_path)["b"], FULL[0])


def test_the_shards_that_this_project_streams_become_full_tensors(tmp_path: Path) -> None:
    tree = {"w": FULL, "scale": np.float32(2.5), "none": np.zeros((0, 4), "float16")}
    reshard.save(tmp_path / "saved", tree)
    opened = reshard.open_checkpoint(tmp_path / "saved")
    layout = {
        "mesh": {"axes": ["a", "b"], "shape": [2, 4]},
        "rules": [{"match": "w", "axes": ["a", "b"]}],
        "unmatched": "replicate",
    }
    folder = tmp_path / "ranks"
    folder.mkdir()
    for number in range(8):
        data = b"".join(opened.stream_shard(number, layout))
        file_of(folder, data, f"rank-{number}.safetensors")
    assert reshard.verify(tmp_path / "saved", folder).differences == 0
    (folder / "rank-5.safetensors").unlink()
    with pytest.raises(CorruptError) as error:
        reshard.inspect(folder)
    assert str(error.value) == (
        f"{folder}/rank-0.safetensors and the files beside it are 7 of 8 shards; shard 5 is missing"
    )


def refused(folder: Path) -> str:
    with pytest.raises(ReshardError) as error:
        reshard.inspect(folder)
    return str(error.value)


def test_pieces_that_leave_a_hole_are_refused(tmp_path: Path) -> None:
    dcp_file(tmp_path, 1, {"w": (FULL[:2], [0, 0])})
    dcp_file(tmp_path, 2, {"w": (FULL[3:], [3, 0])})
    said = refused(tmp_path)
    assert (
        "'w' of shape [6, 8]: no piece holds [2:3, 0:8]; expected each element in exactly one piece"
        in said
    )
    assert "shard-00001" in said
    assert "shard-00002" in said


def test_pieces_that_overlap_are_refused(tmp_path: Path) -> None:
    dcp_file(tmp_path, 1, {"w": (FULL[:4], [0, 0])})
    dcp_file(tmp_path, 2, {"w": (FULL[3:], [3, 0])})
    one, two = (f"{tmp_path}/shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2))
    assert refused(tmp_path) == (
        f"'w' of shape [6, 8]: pieces [0:4, 0:8] of {one} and [3:6, 0:8] of {two} overlap; expected each element in "
        f"exactly one piece, so a part of the checkpoint is missing or belongs to another one (pieces in {one}, {two})"
    )


def test_a_replica_of_a_part_of_another_piece_is_refused(tmp_path: Path) -> None:
    dcp_file(tmp_path, 1, {"w": (FULL[:3, :5], [0, 0])})
    dcp_file(tmp_path, 2, {"w": (FULL[:3, 5:], [0, 5])})
    dcp_file(tmp_path, 3, {"w": (FULL[3:], [3, 0])})
    dcp_file(tmp_path, 4, {"w": (FULL[3:, :4], [3, 0])})
    said = refused(tmp_path)
    assert "[3:6, 0:8] of " in said
    assert "shard-00003" in said
    assert "[3:6, 0:4] of " in said
    assert "shard-00004" in said
    assert " overlap; expected each element in exactly one piece" in said


def test_a_hole_between_loose_pieces_is_refused(tmp_path: Path) -> None:
    dcp_file(tmp_path, 1, {"w": (FULL[:3, :5], [0, 0])})
    dcp_file(tmp_path, 2, {"w": (FULL[:2, 5:], [0, 5])})
    dcp_file(tmp_path, 3, {"w": (FULL[3:], [3, 0])})
    assert "'w' of shape [6, 8]: no piece holds [2:3, 5:8]" in refused(tmp_path)


def test_a_tensor_that_is_whole_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("rank-0.safetensors", "rank-1.safetensors"):
        file_of(tmp_path, save({"w": FULL}), name)
    assert refused(tmp_path) == (
        f"tensor 'w' is in {tmp_path}/rank-0.safetensors and in {tmp_path}/rank-1.safetensors, and neither says that it is a "
        "slice. If they are two models, name one of the files, or the index of one; if each is the part of one rank, keep both, "
        "and let the program that wrote them join them: nothing in them says where the parts belong"
    )


def test_a_slice_beside_a_whole_tensor_is_refused(tmp_path: Path) -> None:
    file_of(tmp_path, save({"w": FULL}), "shard-00002-model-00001-of-00001.safetensors")
    dcp_file(tmp_path, 1, {"w": (FULL[:3], [0, 0])})
    assert (
        "holds it without saying where it belongs; the files are not of one checkpoint"
        in refused(tmp_path)
    )


ENTRY = {"full_shape": [6, 8], "offset": [0, 0], "shape": [3, 8], "dtype": "int32"}


def test_files_of_different_runs_are_refused(tmp_path: Path) -> None:
    shard_file(tmp_path, 0, 2, {"w": ENTRY}, w=FULL[:3])
    shard_file(tmp_path, 1, 4, {"w": {**ENTRY, "offset": [3, 0]}}, w=FULL[3:])
    assert "are of 2 and 4 shards; the files are not of one checkpoint" in refused(tmp_path)


@pytest.mark.parametrize(
    ("other", "array", "said"),
    [
        ({**ENTRY, "offset": [3, 0], "full_shape": [7, 8]}, FULL[3:], "has the full shapes"),
        ({**ENTRY, "offset": [3, 0]}, FULL[3:].astype("int64"), "are not of one checkpoint"),
        ({**ENTRY, "offset": [3]}, FULL[3:], "are not of one checkpoint"),
        ({**ENTRY, "offset": [4, 0]}, FULL[3:], "is out of bounds"),
        ({**ENTRY, "offset": [-1, 0]}, FULL[3:], "should contain numbers from 0 to 2^62"),
        ([], FULL[3:], "the slice of 'w' should be of type dict"),
        ({}, FULL[3:], "the offset of the slice of 'w' should be of type list, but is None"),
    ],
)
def test_slices_that_contradict_each_other_are_refused(
    tmp_path: Path, other: Any, array: np.ndarray, said: str
) -> None:
    shard_file(tmp_path, 0, 2, {"w": ENTRY}, w=FULL[:3])
    shard_file(tmp_path, 1, 2, {"w": other}, w=array)
    assert said in refused(tmp_path)


def test_a_slice_of_a_tensor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    shard_file(tmp_path, 0, 1, {"v": ENTRY}, w=FULL)
    assert "tells of 'v', which the file does not hold" in refused(tmp_path)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    data = save({"w": FULL}, {"reshard.slices": '{"version": 2}'})
    file_of(tmp_path, data, "a.safetensors")
    assert "has the version 2; this version of reshard reads version 1" in refused(tmp_path)


def test_slices_that_are_no_json_are_refused(tmp_path: Path) -> None:
    file_of(tmp_path, save({"w": FULL}, {"DCP_SHARDING_INFO": "{"}), "a.safetensors")
    assert "DCP_SHARDING_INFO in the header of" in refused(tmp_path)
