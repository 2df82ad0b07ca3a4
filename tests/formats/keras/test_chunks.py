"""Datasets that h5py wrote in chunks, with gzip and shuffle or without: every value, what is refused, and the memory that it takes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import obstore
import pytest

import reshard
from reshard.errors import CorruptError, FormatError, MemoryBudgetError
from reshard.formats.keras import chunks, datasets
from tests.conformance.same import assert_same_arrays
from tests.conformance.weights import read_weights
from tests.emulators.buckets import Bucket
from tests.formats.keras.models import nested_model, randomized
from tests.formats.keras.small import DATA, refusal

STORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "shuffled": {"compression": 9, "shuffle": True},
    "growing": {"compression": 0, "shuffle": True, "maxshape": (None, None)},
}

REPACK = "; rewrite the file with 'h5repack -l CONTI -f NONE OLD NEW', or load it with Keras and save it again"


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1).normal(size=(35, 17)) * 50
    kinds = ("f2", "f4", "f8", "c8", "i8", "u1", "?")
    return {
        f"{np.dtype(kind).name}/{how}": numbers.astype(kind) for kind in kinds for how in STORED
    }


def chunked(file: Path, arrays: dict[str, np.ndarray[Any, Any]], **options: Any) -> Path:
    """A file of these arrays in chunks of 8 × 5, which the arrays do not fill; and a chunk that is larger than its array."""
    with h5py.File(file, "w", **options) as made:
        for name, array in arrays.items():
            how = STORED[name.rpartition("/")[2]]
            made.create_dataset(name, data=array, chunks=(8, 5), **how)
        made.create_dataset("few", data=np.arange(3.0), chunks=(10,), maxshape=(None,))
    return file


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 512}])
@pytest.mark.parametrize("to", ["orbax", "safetensors", "keras"])
def test_every_value_is_converted(
    to: str,
    options: dict[str, Any],
    arrays: dict[str, np.ndarray[Any, Any]],
    tmp_path: Path,
) -> None:
    source = chunked(tmp_path / "source.weights.h5", arrays, **options)
    target = tmp_path / ("made.weights.h5" if to == "keras" else "made")
    reshard.convert(source, target, to=to)
    assert reshard.verify(source, target).differences == 0
    reshard.convert(target, tmp_path / "again.weights.h5", to="keras")
    expected = {**arrays, "few": np.arange(3.0)}
    assert_same_arrays(read_weights(tmp_path / "again.weights.h5"), expected)


def test_weights_of_keras_that_a_program_compressed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.weights.h5", tmp_path / "packed.weights.h5"
    randomized(nested_model(), 1).save_weights(plain)
    with h5py.File(plain) as read, h5py.File(packed, "w") as made:

        def copy(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset):
                how = {"chunks": True, "compression": "gzip", "shuffle": True} if found.ndim else {}
                put = made.create_dataset(name, data=found[()], dtype=found.dtype, **how)
                put.attrs.update(found.attrs)

        read.visititems(copy)
    assert reshard.verify(plain, packed).differences == 0
    reshard.convert(packed, tmp_path / "made.weights.h5")
    assert_same_arrays(read_weights(tmp_path / "made.weights.h5"), read_weights(plain))


def test_stock_readers_take_what_keeps_the_compression(
    arrays: dict[str, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    """HDF5 stores the form of zlib, Orbax' arrays that of gzip."""
    source = chunked(tmp_path / "source.weights.h5", arrays)
    reshard.convert(source, tmp_path / "made", to="orbax", compression="keep")
    found = reshard.inspect(tmp_path / "made").tensors["float32/shuffled"]
    assert (found.encoding.compressor, found.encoding.level) == ("gzip", 9)
    import orbax.checkpoint as ocp

    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "made")
    assert_same_arrays(
        {f"float32/{how}": np.asarray(restored["float32"][how]) for how in STORED},
        {f"float32/{how}": arrays[f"float32/{how}"] for how in STORED},
    )


def test_chunks_are_read_from_a_bucket(
    arrays: dict[str, np.ndarray[Any, Any]], tmp_path: Path, s3_bucket: Bucket
) -> None:
    content = chunked(tmp_path / "source.weights.h5", arrays).read_bytes()
    obstore.put(s3_bucket.store(), "source.weights.h5", content, use_multipart=False)
    reshard.convert(f"{s3_bucket.url}/source.weights.h5", tmp_path / "made.weights.h5")
    expected = {**arrays, "few": np.arange(3.0)}
    assert_same_arrays(read_weights(tmp_path / "made.weights.h5"), expected)


def test_a_budget_below_one_chunk_is_refused_with_the_need(tmp_path: Path) -> None:
    file = tmp_path / "large.weights.h5"
    with h5py.File(file, "w") as made:
        zeros = np.zeros((4096, 4096), np.float32)
        made.create_dataset("w", data=zeros, chunks=zeros.shape, compression=1, shuffle=True)
    with pytest.raises(MemoryBudgetError, match=r"(?s)'w'.*(zlib).*MiB"):
        reshard.convert(file, tmp_path / "made", to="orbax", max_memory="48MiB")
    reshard.convert(file, tmp_path / "made", to="orbax", max_memory="256MiB")
    assert reshard.verify(file, tmp_path / "made").differences == 0


def one(**options: Any) -> Callable[[h5py.File], None]:
    return lambda file: (
        file.create_dataset("w", **{"data": DATA, "chunks": (2, 2), **options}) and None
    )


def partly(file: h5py.File) -> None:
    file.create_dataset("w", (6, 4), np.float32, chunks=(2, 2), compression=1)[:2] = 1


def skipped(file: h5py.File) -> None:
    made = file.create_dataset("w", data=DATA, chunks=(6, 4), compression=1)
    made.id.write_direct_chunk((0, 0), DATA.tobytes(), 1)


def record(file: h5py.File) -> None:
    file.create_dataset("slices.json", data=np.zeros(9, np.uint8), chunks=(3,))


ONLY = f", and only gzip (deflate) is read, with or without shuffle before it{REPACK}"

CASES: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "lzf": (one(shuffle=True, compression="lzf"), f"'w' is stored in chunks with filters (shuffle, lzf){ONLY}"),
    "shuffle alone": (one(shuffle=True), f"'w' is stored in chunks with filters (shuffle){ONLY}"),
    "a checksum": (one(fletcher32=True), f"'w' is stored in chunks with filters (fletcher32){ONLY}"),
    "written in part": (partly, "'w' has 6 chunks, of which 2 were written; write them all, or leave it out when the file is made"),
    "a filter skipped": (skipped, f"'w' has a chunk at [0, 0] without some of its filters, which is not read{REPACK}"),
    "a record": (record, f"'slices.json' is stored in chunks, and a record is not{REPACK}"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, tmp_path: Path) -> None:
    make, said = CASES[case]
    with h5py.File(tmp_path / "x.weights.h5", "w") as made:
        make(made)
    assert refusal(tmp_path / "x.weights.h5") == f"FILE: {said}"


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.weights.h5"
    with h5py.File(file, "w") as made:
        one()(made)
    monkeypatch.setattr(datasets, "MAX_CHUNKS", 5)
    assert refusal(file) == f"FILE has more than 5 chunks{REPACK}"
    monkeypatch.setattr(chunks, "MAX_CHUNKS", 5)
    said = f"FILE: 'w' is stored in more or larger chunks than are read{REPACK}"
    assert refusal(file) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (zlib.compress(bytes(1 << 26)), "it decodes to more than 96 bytes"),
        (zlib.compress(bytes(95)), "its encoded bytes end after 95 of 96 decoded bytes"),
        (b"no zlib", "zlib cannot decode it"),
    ],
)
def test_a_chunk_that_lies_about_its_size(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.weights.h5"
    with h5py.File(file, "w") as made:
        put = made.create_dataset("w", DATA.shape, DATA.dtype, chunks=(6, 4), compression=1)
        put.id.write_direct_chunk((0, 0), content)
    with pytest.raises(CorruptError, match=rf"tensor 'w', chunk \[0, 0\]: {said}"):
        reshard.convert(file, tmp_path / "made", to="orbax")
    assert not (tmp_path / "made").exists()


class Reported:
    """A dataset of 6 × 4 in chunks of 3 × 4, whose index reports what it is given."""

    def __init__(self, made: Any, *reported: SimpleNamespace) -> None:
        self._made, self._reported = made, reported

    def get_create_plist(self) -> Any:
        return self._made

    def chunk_iter(self, take: Callable[[Any], str | None]) -> None:
        for one in self._reported:
            if take(one) is not None:
                return


def reported(start: int, offset: int | None, size: int = 48) -> SimpleNamespace:
    return SimpleNamespace(chunk_offset=(start, 0), filter_mask=0, byte_offset=offset, size=size)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([reported(0, 2048), reported(9, 96)], "D has a chunk at [9, 0], outside of it, which is not read" + REPACK),
        ([reported(0, 2048), reported(0, 96)], "D has two chunks at [0, 0], which is not read" + REPACK),
        ([reported(0, 0)], "D has a chunk without a place in the file; restore the file from a copy"),
        ([reported(0, None)], "D has a chunk without a place in the file; restore the file from a copy"),
        ([reported(0, 1 << 63)], "D has a chunk that ends at 9,223,372,036,854,775,856, but the file has 4,096 bytes; it was cut short: restore it from a copy"),
        ([reported(0, 2048), reported(3, 96, 47)], "D has a chunk of another size than 48 bytes; restore the file from a copy"),
    ],
)  # fmt: skip
def test_an_index_of_chunks_that_cannot_be(
    given: list[SimpleNamespace], said: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("w", (6, 4), "f4", chunks=(3, 4)).id.get_create_plist()
        with pytest.raises((CorruptError, FormatError)) as error:
            chunks.read_chunk_table(Reported(made, *given), "D", "float32", (6, 4), 4096)
    assert str(error.value) == said


def test_a_shuffle_of_other_elements(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        found = file.create_dataset("w", (6, 4), "f4", chunks=(3, 4), shuffle=True, compression=1)
        with pytest.raises(CorruptError) as error:
            chunks.read_chunk_table(found.id, "D", "float64", (6, 4), 4096)
    assert (
        str(error.value)
        == "D has elements of 8 bytes, but its filter shuffle says otherwise; restore the file from a copy"
    )


def test_the_memory_of_many_chunks_counts(tmp_path: Path) -> None:
    """Each has a place of 16 bytes, and an edge in the grid."""
    with h5py.File(tmp_path / "x.weights.h5", "w") as file:
        file.create_dataset("w", data=np.zeros(50_000, "u1"), chunks=(1,))
    found = reshard.plan(tmp_path / "x.weights.h5", tmp_path / "out.weights.h5")
    assert found.metadata_bytes >= 50_000 * 56


def test_chunks_beyond_the_end(tmp_path: Path) -> None:
    file = tmp_path / "x.weights.h5"
    with h5py.File(file, "w") as made:
        made.create_dataset("w", data=DATA, chunks=(6, 4))
        made.flush()
    with h5py.File(file) as read:
        place = read["w"].id.get_chunk_info(0).byte_offset
    content = file.read_bytes()
    at = content.index(place.to_bytes(8, "little"))
    far = (len(content) - 90).to_bytes(8, "little")
    file.write_bytes(content[:at] + far + content[at + 8 :])
    assert refusal(file, CorruptError) == (
        f"FILE: 'w' has a chunk that ends at {len(content) + 6:,}, but the file has {len(content):,} bytes; it was cut short: "
        "restore it from a copy"
    )


def test_any_flipped_byte_is_an_error_or_told(tmp_path: Path) -> None:
    """Only elements and names may change; zlib's own checksum shows damaged elements."""
    file = tmp_path / "x.weights.h5"
    with h5py.File(file, "w") as made:
        one(compression=1, shuffle=True)(made)
    content = file.read_bytes()
    for at in range(0, len(content), 13):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x81]) + content[at + 1 :])
        try:
            found = read_weights_of(file)
        except (FormatError, CorruptError):
            continue
        assert [name for name in found if name != "w"] or np.array_equal(found["w"], DATA), at


def read_weights_of(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.asarray(array) for name, array in reshard.restore(file).items()}
