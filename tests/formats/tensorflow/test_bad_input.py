"""What is refused of a checkpoint of TensorFlow, by its text; damage anywhere is an error of one line, in bounded time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.checksums.crc import CRC32C
from reshard.errors import (
    CorruptError,
    FormatError,
    MissingError,
    NotACheckpointError,
    ReshardError,
)
from reshard.formats.tensorflow.index import BundleEntry, entry_bytes, header_bytes, slice_key
from reshard.formats.tensorflow.table import bytes_field, entries, masked, number_field, table_bytes
from reshard.inspection.run_steps import steps_of
from reshard.storage.location import locate

DATA = np.arange(24, dtype=np.float32)
FLOAT = 1


def crc(first: int, count: int) -> int:
    return CRC32C.of(DATA[first : first + count].tobytes())


def whole(**changes: Any) -> dict[bytes, bytes]:
    """An index of one tensor of 6 x 4 elements."""
    entry = {"dtype": FLOAT, "shape": (6, 4), "offset": 0, "nbytes": 96, "crc32c": crc(0, 24)}
    return {b"": header_bytes(1), b"w": entry_bytes(BundleEntry(**entry | changes))}


def sliced(*rows: tuple[int, int]) -> dict[bytes, bytes]:
    """The same in slices of rows: where each begins, and how many there are."""
    slices = tuple(((start, count), (0, -1)) for start, count in rows)
    found = {b"": header_bytes(1), b"w": entry_bytes(BundleEntry(FLOAT, (6, 4), slices=slices))}
    for (start, count), extents in zip(rows, slices, strict=True):
        nbytes = 16 * count
        entry = BundleEntry(FLOAT, (count, 4), 0, 16 * start % 48, nbytes, crc(0, 1))
        found[slice_key(b"w", extents)] = entry_bytes(entry)
    return found


def put(folder: Path, index: dict[bytes, bytes] | bytes, data: bytes = DATA.tobytes()) -> Path:
    content = index if isinstance(index, bytes) else table_bytes(sorted(index.items()))
    (folder / "ckpt.index").write_bytes(content)
    (folder / "ckpt.data-00000-of-00001").write_bytes(data)
    return folder / "ckpt"


def with_block_of(index: dict[bytes, bytes], kind: int) -> bytes:
    """The index, whose first block says that it is compressed."""
    content = bytearray(table_bytes(sorted(index.items())))
    restarts = content.index(bytes([0, 0, 0, 0, 1, 0, 0, 0, 0]))  # the end of the first block
    end = restarts + 8
    content[end] = kind
    content[end + 1 : end + 5] = masked(CRC32C.of(bytes(content[: end + 1]))).to_bytes(4, "little")
    return bytes(content)


INDEX = table_bytes(sorted(whole().items()))
SHAPE_OF_3 = bytes_field(2, bytes_field(2, number_field(1, 3)))

CASES: dict[str, tuple[Any, type[Exception], str]] = {
    "no header": ({b"w": whole()[b"w"]}, CorruptError, "ckpt.index is damaged: it has no header; restore the file from a copy"),
    "cut short": (INDEX[:-9], CorruptError, "ckpt.index does not end as an index of TensorFlow does: it has"),
    "empty": (b"", CorruptError, "it has 0 bytes, of which the last 8 should be 57fb808b247547db, and are missing"),
    "a flipped byte": (INDEX[:3] + b"?" + INDEX[4:], CorruptError, "the block at 0 does not have its checksum"),
    "snappy": (with_block_of(whole(), 1), FormatError, "has a block that is compressed with snappy, which TensorFlow itself does not write"),
    "zstd": (with_block_of(whole(), 2), FormatError, "has a block that is compressed in the way 2"),
    "big-endian": (whole() | {b"": header_bytes(1) + number_field(2, 1)}, FormatError, "was written on a big-endian machine"),
    "a newer version": (whole() | {b"": header_bytes(1) + bytes_field(3, number_field(2, 2))}, FormatError, "asks for version 2 of its format, and 1 is the newest that is known"),
    "a bad header": (whole() | {b"": b"\x0a"}, CorruptError, "is damaged: its header: a number does not end"),
    "a bad entry": (whole() | {b"w": b"\x08\x01\x12\x7f"}, CorruptError, "is damaged: 'w': a field goes beyond its end"),
    "no rank": (whole() | {b"w": b"\x08\x01" + bytes_field(2, number_field(3, 1))}, CorruptError, "'w': its rank is not known"),
    "too few bytes": (whole(nbytes=92), CorruptError, "'w' of float32 at [0:6, 0:4] takes 96 bytes, but 92 are stored"),
    "beyond the data": (whole(offset=4), CorruptError, "ckpt.data-00000-of-00001 has 96 bytes, but 'w' ends at 100; it was cut short"),
    "another data file": (whole(data_file=1), CorruptError, "'w' is in data file 1, counted from 0, but the index counts 1"),
    "a data file is missing": (whole() | {b"": header_bytes(2)}, MissingError, "ckpt.data-00000-of-00002 is missing; "),
    "a negative size": (whole() | {b"w": b"\x08\x01" + bytes_field(2, bytes_field(2, number_field(1, -3)))}, CorruptError, "'w' has the shape [-3]; expected at most 32 sizes of at least 0"),
    "a huge shape": (whole(shape=(1 << 40, 1 << 40)), CorruptError, "is larger than any tensor that is read"),
    "overlap": (sliced((0, 4), (3, 3)), CorruptError, "overlap"),
    "a hole": (sliced((0, 2), (3, 3)), CorruptError, "no piece holds [2:3, 0:4]"),
    "out of bounds": (sliced((0, 3), (3, 4)), CorruptError, "'w' of shape [6, 4]: piece [3:7, 0:4] is out of bounds"),
    "a slice is missing": ({k: v for k, v in sliced((0, 3), (3, 3)).items() if k != slice_key(b"w", ((3, 3), (0, -1)))}, CorruptError, "it has no entry for the slice 3,3:- of 'w', or two"),
    "a slice of nothing": (whole() | {slice_key(b"x", ((0, 1),)): SHAPE_OF_3}, CorruptError, "it has 1 slices of which no tensor tells"),
    "a slice of another kind": (sliced((0, 6)) | {slice_key(b"w", ((0, 6), (0, -1))): b"\x08\x02"}, CorruptError, "the slice 0,6:- of 'w' is not like the tensor"),
    "a name of other bytes": (whole() | {b"\xfe": whole()[b"w"]}, FormatError, "the name b'\\xfe' is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, tmp_path: Path) -> None:
    index, kind, said = CASES[case]
    with pytest.raises(kind) as caught:
        reshard.inspect(put(tmp_path, index))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["whole", "rows", "columns", "turned"])
@pytest.mark.parametrize("how", ["convert", "map", "copy", "restore", "verify"])
def test_a_flipped_byte_of_data_is_found(kind: str, how: str, tmp_path: Path) -> None:
    """By the checksum that TensorFlow records of each slice, which is looked at while the data is read."""
    reshard.save(
        tmp_path / "saved", {"w": np.arange(60, dtype=np.float32).reshape(6, 10), "v": np.arange(5)}
    )
    axis, shards = {"whole": (0, 1), "rows": (0, 4), "columns": (1, 3), "turned": (1, 3)}[kind]
    layout = {"partitions": [{"match": "w", "fixed_shards": shards, "axis": axis}]}
    reshard.convert(tmp_path / "saved", tmp_path / "ckpt", to="tensorflow", layout=layout)
    (tmp_path / "ckpt.slices.json").unlink()  # a digest in it would tell
    assert_found(how, tmp_path, fails=False)
    file = max(tmp_path.glob("ckpt.data*"))
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 16
    file.write_bytes(damaged)
    assert_found(how, tmp_path, fails=True)


def assert_found(how: str, folder: Path, *, fails: bool) -> None:
    source, target = folder / "ckpt", folder / f"made-{how}-{fails}"
    rule = {"from": "w", "to": "w", "shape": "(a b) c -> c a b"}
    ways: dict[str, Any] = {
        "convert": lambda: reshard.convert(source, target, to="orbax", compression="zstd"),
        "map": lambda: reshard.convert(
            source,
            target,
            to="orbax",
            map={"map": [rule, {"from": "v", "to": "v"}]},
            sizes={"a": 2},
        ),
        "copy": lambda: reshard.convert(source, target, to="tensorflow"),
        "restore": lambda: reshard.restore(source),
        "verify": lambda: reshard.verify(source, folder / "saved"),
    }
    try:
        done = ways[how]()
    except CorruptError as error:
        assert fails
        assert "does not have the CRC32C" in str(error) or "do not have the CRC32C" in str(error)
        assert not target.exists()
    else:
        assert fails == (how == "verify" and done.differences > 0)


def test_an_index_alone_and_data_alone(tmp_path: Path) -> None:
    made = put(tmp_path, whole())
    data = tmp_path / "ckpt.data-00000-of-00001"
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(
        MissingError, match=r"ckpt\.data-00000-of-00001 is missing; .* counts 1 data files"
    ):
        reshard.inspect(made)
    with pytest.raises(NotACheckpointError) as caught:
        reshard.inspect(tmp_path)
    assert str(caught.value).endswith(
        "'ckpt.index' is an index of TensorFlow without its data files (ckpt.data-00000-of-…); copy them there"
    )
    (tmp_path / "elsewhere").rename(data)
    (tmp_path / "ckpt.index").unlink()
    for place in (made, tmp_path, data):
        with pytest.raises(
            NotACheckpointError,
            match=r"'ckpt\.data-00000-of-00001' is there without 'ckpt\.index'"
            if place != data
            else "it is a file",
        ):
            reshard.inspect(place)


def test_files_and_folders_lead_to_the_prefix(tmp_path: Path) -> None:
    put(tmp_path, whole())
    with pytest.raises(NotACheckpointError, match=f"so name one of them: {tmp_path}/ckpt"):
        reshard.inspect(tmp_path)
    for name in ("ckpt.index", "ckpt.data-00000-of-00001"):
        with pytest.raises(NotACheckpointError, match=f"which its prefix names: {tmp_path}/ckpt"):
            reshard.inspect(tmp_path / name)


def test_steps_are_prefixes(tmp_path: Path) -> None:
    put(tmp_path, whole())
    for step in (5, 10):
        for ending in (".index", ".data-00000-of-00001"):
            shutil.copy(tmp_path / f"ckpt{ending}", tmp_path / f"model.ckpt-{step}{ending}")
            (tmp_path / f"ckpt{ending}").touch()
    (tmp_path / "model.ckpt-11.data-00000-of-00001").write_bytes(b"")  # not finished
    assert reshard.steps(tmp_path) == {5: "model.ckpt-5", 10: "model.ckpt-10"}
    assert reshard.inspect(tmp_path, step="latest").uri == f"{tmp_path}/model.ckpt-10"
    assert all(step.files == 2 and step.nbytes > 96 for step in steps_of(tmp_path))


def test_a_record_of_other_tensors(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"w": DATA.reshape(6, 4)})
    reshard.convert(tmp_path / "saved", tmp_path / "made", to="tensorflow")
    record = tmp_path / "made.slices.json"
    text = record.read_text()
    record.write_text(text.replace("float32", "float64"))
    with pytest.raises(CorruptError, match=r"made\.slices\.json"):
        reshard.inspect(tmp_path / "made")
    record.unlink()
    reshard.inspect(tmp_path / "made")
    put(tmp_path, whole())
    (tmp_path / "ckpt.slices.json").write_text(text.replace('"w"', '"v"'))
    with pytest.raises(CorruptError):
        reshard.inspect(tmp_path / "ckpt")


@given(st.data())
def test_damage_is_an_error_of_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bytes of an index change, with or without the right checksum of its block."""
    index = data.draw(st.sampled_from([whole(), sliced((0, 3), (3, 3)), sliced((0, 6))]))
    keys = sorted(index)
    changed = dict(index)
    if data.draw(st.booleans()):  # messages, whose block has its checksum
        key = data.draw(st.sampled_from(keys))
        value = bytearray(changed.pop(key))
        if value:
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
        key = data.draw(st.just(key) | st.binary(max_size=4).map(lambda more: key + more))
        changed[key] = bytes(value)
        content = table_bytes(sorted(changed.items()))
    else:
        content = table_bytes(sorted(index.items()))
        at = data.draw(st.integers(0, len(content) - 1))
        content = content[:at] + data.draw(st.binary(max_size=3)) + content[at + 1 :]
    folder = tmp_path_factory.mktemp("damaged")
    try:
        made = put(folder, content)
        found = reshard.restore(made)
        assert all(array.nbytes < 1 << 20 for array in found.values())
    except ReshardError as error:
        assert "\n" not in str(error)
    finally:
        shutil.rmtree(folder)


def test_a_table_of_many_blocks(tmp_path: Path) -> None:
    """More entries than a block holds, whose keys share their beginnings."""
    wanted = {f"layers/{n:06d}/kernel".encode(): bytes([n % 251]) * 40 for n in range(20_000)}
    file = tmp_path / "t"
    file.write_bytes(table_bytes(wanted.items()))
    found = locate(file)
    assert dict(entries(found.open(), file.stat().st_size, "t")) == wanted
