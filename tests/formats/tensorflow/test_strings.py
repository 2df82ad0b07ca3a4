"""Tensors of strings: read in any slices, joined and written whole for TensorFlow; named elsewhere; damage is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.cli.views.inspection import inspection_view
from reshard.errors import CorruptError, FormatError
from reshard.formats.contents import Carried, CarriedPart, Extent
from reshard.formats.tensorflow.index import (
    STRING,
    BundleEntry,
    entry_bytes,
    header_bytes,
    slice_key,
)
from reshard.formats.tensorflow.other_leaves import MOST_READ_BYTES, MOST_STRINGS
from reshard.formats.tensorflow.strings import Strings, joined_bytes, read_strings, stored_strings
from reshard.formats.tensorflow.table import table_bytes
from reshard.geometry.grid import Box, Grid
from tests.cli.show import show
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("tensorflow")

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
KEY = f"model/words{VALUE}"
WORDS = [f"w{row}.{n}".encode() * (n % 3) for row in range(5) for n in range(4)]
"""As the oracle saves them, 5 x 4."""


def strings_of(values: list[bytes]) -> Strings:
    return Strings(np.array([len(v) for v in values], np.int64), b"".join(values))


def test_shards_of_strings_become_whole(tmp_path: Path, tensorflow: Oracle) -> None:
    """TensorFlow puts its own shards of strings together in no way but the one that they were saved in."""
    prefix = tensorflow.ask("save_strings", folder=str(tmp_path))
    for ask, arguments in (
        ("string_values", {}),
        ("restored_slices", {"key": KEY, "dtype": "string", "specs": ["5 4 1,3:-"]}),
    ):
        with pytest.raises(RefusedError, match="Dtype string not supported"):
            tensorflow.ask(ask, prefix=prefix, **arguments)
    report = reshard.convert(prefix, tmp_path / "made")
    assert report.warnings == (
        "'model/words' (strings) is stored whole: it is in slices in the source, and TensorFlow cannot put slices of strings together",
    )
    found = tensorflow.ask("string_values", prefix=str(tmp_path / "made"))
    assert found == {
        KEY: [[5, 4], [word.hex() for word in WORDS]],
        f"model/none{VALUE}": [[0, 3], []],
        f"model/long{VALUE}": [[3], [b"a".hex() * 300, "", "ü".encode().hex()]],
        f"model/blob{VALUE}": [[], ["ff00"]],
        f"model/text{VALUE}": [[], [b"text".hex()]],
    }
    assert reshard.diff(prefix, tmp_path / "made").differences == 0
    again = reshard.convert(tmp_path / "made", tmp_path / "again")  # from one place
    assert not again.warnings
    assert tensorflow.ask("string_values", prefix=str(tmp_path / "again")) == found


def test_a_partition_that_names_strings_is_told_that_they_stay_whole(
    tmp_path: Path, tensorflow: Oracle
) -> None:
    prefix = tensorflow.ask("save_strings", folder=str(tmp_path))
    whole = reshard.convert(prefix, tmp_path / "whole").target
    cut: dict[str, Any] = {"partitions": [{"match": "words$", "fixed_shards": 2}]}
    assert reshard.plan(whole, to="tensorflow", layout=cut).warnings == (
        "'model/words' (strings) is stored whole, though partitions[0] 'words$' (layout) matches it: strings are never cut",
    )
    not_cut = {"mesh": {"x": 2}, "rules": [{"match": "model/.*", "axes": []}]}
    assert reshard.plan(whole, to="tensorflow", layout=not_cut).warnings == ()


def test_inspect_says_what_they_are(tmp_path: Path, tensorflow: Oracle) -> None:
    prefix = tensorflow.ask("save_strings", folder=str(tmp_path))
    found = reshard.inspect(prefix)
    leaves = {leaf.name: (leaf.kind, leaf.shape) for leaf in found.leaves}
    assert leaves["model/words"] == ("20 strings", (5, 4))
    assert leaves["model/blob"] == ("bytes", None)
    assert leaves["model/text"] == (None, None)
    text = show(inspection_view(found, show_all=True), width=300)
    assert "model/words (20 strings of shape [5, 4])" in text


def test_slices_of_columns_become_whole(tmp_path: Path, tensorflow: Oracle) -> None:
    prefix = tensorflow.ask("save_string_columns", folder=str(tmp_path))
    reshard.convert(prefix, tmp_path / "made")
    found = tensorflow.ask("string_values", prefix=str(tmp_path / "made"))
    assert found == {"words": [[5, 4], [word.hex() for word in WORDS]]}


def test_they_travel_with_renamed_tensors_into_other_shards(
    tmp_path: Path, tensorflow: Oracle
) -> None:
    prefix = tensorflow.ask("save_strings", folder=str(tmp_path))
    numbers = tensorflow.ask("save_shards", folder=str(tmp_path / "n"), rows=[3, 3, 2])
    layout = {"partitions": [{"match": "table$", "fixed_shards": 2}]}
    reshard.convert(numbers, tmp_path / "numbers", layout=layout)
    reshard.convert(prefix, tmp_path / "made", rename={"^model/": "net/"}, drop=["blob"])
    found = tensorflow.ask("string_values", prefix=str(tmp_path / "made"))
    assert set(found) == {f"net/{name}{VALUE}" for name in ("words", "none", "long", "text")}


def test_other_formats_name_them(tmp_path: Path) -> None:
    made = put(tmp_path, {"a": ((2,), [b"x", b"yy"]), "b": ((), [b"text"])})
    for to in ("orbax", "dcp", "safetensors", "keras"):
        with pytest.raises(
            FormatError, match=r"cannot hold 'a' \(2 strings\): such values are not"
        ):
            reshard.convert(made, tmp_path / f"made{'.weights.h5' * (to == 'keras')}", to=to)
    with pytest.raises(FormatError, match=r"'a' \(2 strings\) is not restored"):
        reshard.restore(made)
    reshard.convert(made, tmp_path / "dropped", to="orbax", drop=["^a$"])


@given(st.data())
def test_boxes_are_joined_as_numpy_joins_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    chunk = [data.draw(st.integers(1, size)) for size in shape]
    count = int(np.prod(shape))
    lengths = st.one_of(st.binary(max_size=3), st.binary(min_size=126, max_size=130))
    values = data.draw(st.lists(lengths, min_size=count, max_size=count))
    whole = np.empty(count, object)
    whole[:] = values
    grid = Grid.regular(shape, chunk)
    file = tmp_path_factory.mktemp("joined") / "data"
    content, stored = bytearray(), []
    for index in data.draw(st.permutations(list(grid.indices()))):
        box = grid.box(index)
        part, crc = stored_strings(strings_of(list(whole.reshape(shape)[box.slices].ravel())))
        stored.append(CarriedPart(Extent(str(file), len(content), len(part)), box, crc))
        content += part
    file.write_bytes(content)
    carried = Carried("tensorflow", tuple(stored), shape)
    found = read_strings(carried, "'w'")
    assert (found.lengths.tolist(), found.data) == ([len(v) for v in values], b"".join(values))
    assert len(stored_strings(found)[0]) == joined_bytes(carried)


Tensors = dict[str, tuple[tuple[int, ...], list[bytes]]]


def put(folder: Path, tensors: Tensors, *, edit: Any = None, **changes: Any) -> Path:
    """A checkpoint of strings, of which the stored bytes and the entries may be changed."""
    data, index = b"", {b"": header_bytes(1)}
    for name, (shape, values) in tensors.items():
        stored, crc = stored_strings(strings_of(values))
        stored = edit(stored) if edit else stored
        entry = {
            "dtype": STRING,
            "shape": shape,
            "offset": len(data),
            "nbytes": len(stored),
            "crc32c": crc,
        }
        index[name.encode()] = entry_bytes(BundleEntry(**entry | changes))
        data += stored
    return write(folder, index, data)


def write(folder: Path, index: dict[bytes, bytes], data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ckpt.index").write_bytes(table_bytes(sorted(index.items())))
    (folder / "ckpt.data-00000-of-00001").write_bytes(data)
    return folder / "ckpt"


def sliced(folder: Path, *rows: tuple[int, int]) -> Path:
    """Five strings in slices: where each begins, and how many there are."""
    index = {b"": header_bytes(1)}
    slices, data = tuple(((start, count),) for start, count in rows), b""
    index[b"w"] = entry_bytes(BundleEntry(STRING, (5,), slices=slices))
    for start, count in rows:
        stored, crc = stored_strings(strings_of([b"abc"] * count))
        index[slice_key(b"w", ((start, count),))] = entry_bytes(
            BundleEntry(STRING, (count,), 0, len(data), len(stored), crc)
        )
        data += stored
    return write(folder, index, data)


def test_no_strings_of_which_nothing_is_stored_are_equal_to_what_is_written(tmp_path: Path) -> None:
    tensors: Tensors = {"none": ((0, 3), [])}
    source = put(tmp_path / "source", tensors, edit=lambda _: b"", crc32c=0)
    reshard.convert(source, tmp_path / "made", to="tensorflow")
    assert reshard.diff(source, tmp_path / "made").differences == 0


DAMAGED = "ckpt.data-00000-of-00001: the strings of 'w' are damaged: "
TWO: Tensors = {"w": ((2,), [b"abc", b"de"])}  # 3 2, their checksum, "abcde"
CASES: dict[str, tuple[Any, str]] = {
    "a flipped byte": (lambda d: d[:-1] + b"?", DAMAGED + "they do not have their checksum; restore the file from a copy"),
    "other lengths": (lambda d: b"\2\3" + d[2:], DAMAGED + "their lengths do not have their checksum"),
    "a longer length": (lambda d: b"\4\2" + d[2:], DAMAGED + "they should have 6 bytes, and have 5"),
    "too few lengths": (lambda d: b"\3" + b"\xff" * (len(d) - 1), DAMAGED + "expected 2 lengths, found 1"),
    "a length of five bytes": (lambda d: b"\3" + b"\xff" * 4 + b"\x7f" + d, DAMAGED + "a length has more than 32 bits"),
    "a length of six bytes": (lambda d: b"\3" + b"\xff" * 5 + b"\1" + d, DAMAGED + "a length has more than 32 bits"),
    "an empty place": (lambda _: b"", "'w' has 2 strings at [0:2], but 0 bytes are stored; restore the checkpoint from a copy"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_damage_is_found_when_they_are_written(case: str, tmp_path: Path) -> None:
    edit, said = CASES[case]
    made = put(tmp_path, TWO, edit=edit)
    with pytest.raises(CorruptError) as caught:
        reshard.convert(made, tmp_path / "made")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.name for file in sorted(tmp_path.iterdir()) if "made" in file.name] in (
        [],
        [".made.resharding"],
    )
    assert not (tmp_path / "made.index").exists()


def test_lengths_that_take_more_bytes_than_they_need(tmp_path: Path) -> None:
    made = put(tmp_path, TWO, edit=lambda d: b"\x83\0" + d[1:])
    with pytest.raises(CorruptError) as caught:
        reshard.convert(made, tmp_path / "made")
    assert str(caught.value).endswith(
        "ckpt.data-00000-of-00001: the strings of 'w' take 12 bytes, and 11 would be enough; the file was not written by TensorFlow: "
        "save it again with TensorFlow"
    )


def test_slices_must_tile_their_tensor(tmp_path: Path) -> None:
    for rows, said in (
        (((0, 2), (1, 4)), "overlap"),
        (((0, 2), (3, 2)), "no piece holds [2:3]"),
        (((0, 2), (2, 4)), "piece [2:6] is out of bounds"),
    ):
        with pytest.raises(CorruptError) as caught:
            reshard.inspect(sliced(tmp_path, *rows))
        assert said in str(caught.value)


def test_what_is_too_large_is_named_only(tmp_path: Path) -> None:
    """A table of one entry must not make a reader take any memory that it names."""
    count = MOST_STRINGS + 1
    stored, crc = stored_strings(Strings(np.zeros(count, np.int64), b""))
    index = {
        b"": header_bytes(1),
        b"w": entry_bytes(BundleEntry(STRING, (count,), 0, 0, len(stored), crc)),
    }
    made = write(tmp_path, index, stored)
    with pytest.raises(FormatError, match=rf"cannot hold 'w' \({count:,} strings\)"):
        reshard.convert(made, tmp_path / "made")


def test_texts_of_one_place_are_read_up_to_a_limit(tmp_path: Path) -> None:
    """Many entries may name the same bytes."""
    stored, crc = stored_strings(strings_of([b"x" * ((1 << 20) - 8)]))
    count = MOST_READ_BYTES // len(stored) + 2
    entry = entry_bytes(BundleEntry(STRING, (), 0, 0, len(stored), crc))
    index = {b"": header_bytes(1)} | {f"t{n:04}".encode(): entry for n in range(count)}
    leaves = reshard.inspect(write(tmp_path, index, stored)).leaves
    assert [leaf.kind for leaf in leaves if leaf.kind] == ["bytes", "bytes"]
    assert len(leaves) == MOST_READ_BYTES // len(stored) + 2


@given(st.data())
def test_any_damage_is_an_error_or_the_same_strings(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.binary(max_size=200), max_size=5))
    stored, crc = stored_strings(strings_of(values))
    damaged = bytearray(stored)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    file = tmp_path_factory.mktemp("damaged") / "data"
    file.write_bytes(damaged[:cut])
    part = CarriedPart(Extent(str(file), 0, cut), Box((0,), (len(values),)), crc)
    try:
        found = read_strings(Carried("tensorflow", (part,), (len(values),)), "'w'")
    except CorruptError as error:
        assert "the strings of 'w' are damaged" in str(error)
    else:
        assert (found.lengths.tolist(), found.data) == ([len(v) for v in values], b"".join(values))
