"""What the writer refuses before it writes anything, and the text of each error."""

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.engine.output import TaskOutput
from reshard.engine.write.chunk_files import write_chunk
from reshard.errors import FormatError, LayoutError, StorageError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Encoding
from reshard.formats.file_map import prepare_files
from reshard.formats.orbax.format import OrbaxForm
from reshard.formats.orbax.write_files import plan_files
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate

W = np.zeros(4, "f4")


def refusal(making, *entries, ocdbt=False):
    with pytest.raises(FormatError) as raised:
        plan_files(making.target_of(entries), OrbaxForm(ocdbt))
    return str(raised.value)


@pytest.mark.parametrize("ocdbt", [False, True])
def test_dotted_names_that_collide(making, ocdbt):
    said = refusal(
        making, making.Entry(("a.b", "c"), W), making.Entry(("a", "b.c"), W), ocdbt=ocdbt
    )
    assert "leaves ('a.b', 'c') and ('a', 'b.c') both have Orbax's dotted name 'a.b.c'" in said
    assert "rename one" in said


def test_a_string_collides_as_a_tensor_does(making):
    said = refusal(making, making.Entry(("a.b",), W), making.Entry(("a", "b"), meta={"string": ""}))
    assert "both have Orbax's dotted name 'a.b'" in said


def test_leaves_without_bytes_do_not_collide(making):
    plan_files(making.target_of([making.Entry(("a.b",), W), making.Entry(("a", "b"))]), OrbaxForm())


def test_slashed_names_that_collide(making):
    said = refusal(making, making.Entry(("a/b", "c"), W), making.Entry(("a", "b/c"), W))
    assert "leaves ('a/b', 'c') and ('a', 'b/c') both have the name 'a/b/c'" in said


def test_a_leaf_below_a_leaf(making):
    said = refusal(making, making.Entry(("a",), W), making.Entry(("a", "b"), W))
    assert "leaf 'a/b' is below 'a', which is a leaf itself" in said


@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("..", "whose part '..' is not a safe file name"),
        ("/etc", "whose part '' is not a safe file name"),
        ("a/../b", "whose part '..' is not a safe file name"),
        ("a//b", "whose part '' is not a safe file name"),
        ("a//", "whose part '' is not a safe file name"),
        (".", "whose part '.' is not a safe file name"),
        ("a\0b", "whose part 'a\\x00b' is not a safe file name"),
        ("\ud800", "is not valid Unicode"),
    ],
)
def test_names_that_are_no_safe_paths(making, key, words, ocdbt):
    said = refusal(making, making.Entry((key,), W), ocdbt=ocdbt)
    assert words in said
    assert "rename it or leave it out" in said


def test_names_that_are_too_long(making):
    said = refusal(making, making.Entry(("é" * 128,), W))
    assert "needs a file name of 256 bytes, but file systems take 255 at most" in said
    assert said.endswith("; rename it or write with ocdbt")


@pytest.mark.parametrize("inner", ["c/0", "c", "zarr.json", "c.0"])
def test_names_inside_the_chunks_of_the_array_without_a_name(making, inner):
    leaves = making.Entry((inner,), W), making.Entry(("",), W)
    said = refusal(making, *leaves)
    assert f"tensors '' and {inner!r} would be" in said or "own metadata needs" in said
    plan_files(making.target_of(leaves), OrbaxForm(ocdbt=True))


@pytest.mark.parametrize("key", ["_METADATA", "slices.json", "manifest.ocdbt", "array_metadatas/x"])
def test_names_of_metadata_files(making, key):
    said = refusal(making, making.Entry((key,), W))
    assert f"tensor {key!r} would be written to the folder {key.partition('/')[0]!r}" in said
    plan_files(making.target_of([making.Entry((key,), W)]), OrbaxForm(ocdbt=True))


@pytest.mark.parametrize("inner", ["x/c/0", "x/c", "x/zarr.json", "x/c.0"])
def test_names_inside_anothers_chunks(making, inner):
    said = refusal(making, making.Entry((inner,), W), making.Entry(("x",), W))
    assert f"tensors 'x' and {inner!r} would be written to the same files" in said


def test_an_array_inside_anothers_folder_is_fine(making, tmp_path):
    entries = [making.Entry(("x/d",), W), making.Entry(("x",), W), making.Entry(("d",), W)]
    making.write(tmp_path / "out", entries)


@pytest.mark.parametrize("dtype", ["uint2", "uint4", "float8_e4m3"])
def test_dtypes_that_zarr3_does_not_have(making, dtype):
    import ml_dtypes

    said = refusal(making, making.Entry(("w",), np.zeros(4, getattr(ml_dtypes, dtype))))
    assert (
        f"tensor 'w' cannot be written: zarr3 as TensorStore reads it has no dtype {dtype}" in said
    )
    assert "cast it or drop it" in said


def test_ranks_that_tensorstore_does_not_have(making):
    said = refusal(making, making.Entry(("w",), np.zeros((1,) * 33, "i1")))
    assert "it has 33 dimensions, but TensorStore reads 32" in said


def test_encodings_that_cannot_be_written(making):
    said = refusal(making, making.Entry(("w",), W, encoding=Encoding("tensorstore", spec="{}")))
    assert (
        "chunks encoded by 'tensorstore' can be read but not written as they are; choose compression none, zstd, gzip or blosc"
        in said
    )


def with_spec(making, spec):
    entry = making.Entry(("w",), W)
    target = TargetTensor(spec, Encoding(), entry.leaf)
    return TargetCheckpoint(making.one_tree, {"w": target}, [entry.leaf], {}, OrbaxForm())


def test_cuts_that_are_no_chunks(making):
    uneven = TensorSpec("w", (4,), "float32", Grid((4,), ((0, 3, 4),)), (2,))
    with pytest.raises(FormatError, match=r"zarr's chunks are all of one shape \(\[2\]\)"):
        plan_files(with_spec(making, uneven), OrbaxForm())
    unpadded = TensorSpec("w", (4,), "float32", Grid.whole((4,)), None)
    with pytest.raises(FormatError, match=r"needs a chunk shape of that rank, but has None"):
        plan_files(with_spec(making, unpadded), OrbaxForm())


def test_layouts_that_do_not_divide(making):
    layout = TensorLayout(("x",), DeviceMesh((3,), ("x",)))
    spec = TensorSpec("w", (4,), "float32", Grid.whole((4,)), (4,), layout)
    with pytest.raises(LayoutError, match="dimension 0 of size 4 does not divide into 3 parts"):
        plan_files(with_spec(making, spec), OrbaxForm())


def test_nothing_to_write(making):
    assert "nothing is left to write" in refusal(making)


def test_tensors_and_leaves_must_match(making):
    target = making.target_of([making.Entry(("w",), W), making.Entry(("v",), W)])
    fewer = replace(target, leaves=target.leaves[:1])
    with pytest.raises(
        FormatError, match=r"tensor 'v' has no leaf in the target tree; it would be lost"
    ):
        plan_files(fewer, OrbaxForm())
    unknown = replace(target, tensors={"w": target.tensors["w"]})
    with pytest.raises(
        FormatError, match="leaf 'v' is a tensor, but its shape and chunks are not known"
    ):
        plan_files(unknown, OrbaxForm())
    astray = making.target_of([making.Entry(("w",), W, item="other")])
    with pytest.raises(
        FormatError, match="belongs to the item 'other', but the container has no such"
    ):
        plan_files(astray, OrbaxForm())


def test_strings_inside_strings(making):
    strings = [making.Entry((key,), meta={"string": "a"}) for key in ("s", "s/t")]
    said = refusal(making, making.Entry(("w",), W), *strings)
    assert "the string 's/t' cannot be written: its name is inside another string's name" in said


@pytest.mark.parametrize("ocdbt", [False, True])
def test_the_file_system_refuses(making, tmp_path, ocdbt):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot .*file/.out.staging.*Not a directory"):
        making.write(tmp_path / "file" / "out", [making.Entry(("w",), W)], ocdbt=ocdbt)


def test_a_chunk_that_cannot_be_put_into_a_database_is_named(making, tmp_path):
    entry = making.Entry(("w",), W)
    files = plan_files(making.target_of([entry]), OrbaxForm(ocdbt=True))
    with pytest.raises(FormatError, match=r"chunk \[0\] of 'w' was put before prepare"):
        files.database.put("w", (0,), b"")
    prepare_files(files, locate(tmp_path / "out"))
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot store chunk \[0\] of 'w'"):
        files.database.put("w", (0,), bytes(20))


def test_a_plain_chunk_that_cannot_be_written_is_named(making, tmp_path):
    files = plan_files(making.target_of([making.Entry(("w",), W)]), OrbaxForm())
    prepare_files(files, locate(tmp_path / "out"))
    (place,) = files.places("w", (0,))
    output = TaskOutput(str(tmp_path / "out"))
    write_chunk(output, place, [bytes(20)])
    assert (tmp_path / "out" / place.file).read_bytes() == bytes(20)
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot create .*/out/w/c\.0"):
        write_chunk(output, place, [bytes(20)])
