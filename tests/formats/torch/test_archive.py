"""Archives of torch.save: where their records are; archives that lie are refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.torch import archive as module
from reshard.formats.torch.archive import (
    CENTRAL_MAGIC,
    END64_MAGIC,
    LOCATOR_MAGIC,
    Archive,
    Most,
    open_archive,
)
from reshard.formats.torch.write_archive import archive_of
from tests.dcp_files import archive

STORED = archive(b"pickle", b"elements")


def reader(data: bytes) -> Callable[[int, int], bytes]:
    def read(offset: int, nbytes: int) -> bytes:
        if offset + nbytes > len(data):
            raise CorruptError("too short")
        return data[offset : offset + nbytes]

    return read


def opened(data: bytes) -> Archive:
    return open_archive(reader(data), len(data), "it")


def refusal(data: bytes, name: str = "data.pkl") -> str:
    with pytest.raises(FormatError) as error:
        opened(data).small(name)
    return str(error.value)


def test_records_are_found() -> None:
    found = opened(STORED)
    assert found.small("data.pkl") == b"pickle"
    record, start = found.start("data/0")
    assert STORED[start : start + record.nbytes] == b"elements"
    found.refuse_big_endian()


class Stream(BytesIO):
    """A pipe: what was written stays as it is."""

    def tell(self) -> int:
        raise OSError

    def seekable(self) -> bool:
        return False


def streamed() -> bytes:
    """An archive whose local headers tell no sizes, as torch writes most."""
    stream = Stream()
    with ZipFile(stream, "w", ZIP_STORED) as file:
        for name, data in (("data.pkl", b"pickle"), ("data/0", b"elements")):
            with file.open(ZipInfo(f"x/{name}"), "w", force_zip64=True) as record:
                record.write(data)
    return stream.getvalue()


def test_a_size_that_only_the_directory_tells_must_fit() -> None:
    data = streamed()
    at = data.index(b"PK\1\2") + 20
    assert refusal(data[:at] + struct.pack("<II", 50, 50) + data[at + 8 :]) == (
        f"{LIES}the headers of its record 'data.pkl' contradict each other{COPY}"
    )


def test_sizes_may_follow_the_data() -> None:
    found = opened(streamed())
    assert found.records["data.pkl"].flags & 8
    assert found.small("data.pkl") == b"pickle"
    assert found.small("data/0") == b"elements"


def test_fields_that_zip64_has_are_taken_from_there() -> None:
    extra = struct.pack("<HHHHQQ", 7, 0, 1, 16, 5 << 32, 9 << 32)
    unset = 0xFFFFFFFF
    assert module._full_sizes(extra, (unset, 3, unset), "it") == [5 << 32, 3, 9 << 32]
    with pytest.raises(CorruptError, match="the size of a record is not told"):
        module._full_sizes(extra[:8], (unset, 3, 3), "it")


def changed(old: bytes, new: bytes) -> bytes:
    assert STORED.count(old) >= 1
    return STORED.replace(old, new)


def central(field: int, value: int) -> bytes:
    """The archive with 4 bytes of the first entry of its directory set."""
    at = STORED.index(b"PK\1\2") + field
    return STORED[:at] + struct.pack("<I", value) + STORED[at + 4 :]


LIES = "it should be an archive of torch.save, but "
COPY = "; restore the file from a copy"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", f"{LIES}it does not begin as an archive does{COPY}"),
        (b"x" * 100, f"{LIES}it does not begin as an archive does{COPY}"),
        (STORED[:-1], f"{LIES}it does not end as an archive does{COPY}"),
        (STORED + b"x", f"{LIES}it does not end as an archive does{COPY}"),
        (STORED[:-6] + struct.pack("<I", 1 << 20) + b"\0\0", f"{LIES}its directory reaches beyond its end record{COPY}"),
        (central(24, 1 << 20), f"{LIES}its record 'archive/data.pkl' has two sizes, 6 and 1,048,576{COPY}"),
        (central(42, 1 << 20), f"{LIES}its record 'archive/data.pkl' reaches into what follows it{COPY}"),
        (central(42, 1), f"{LIES}the headers of its record 'data.pkl' contradict each other{COPY}"),
        (changed(b"archive/version", b"brchive/version"), f"{LIES}its records have names that torch.save does not give{COPY}"),
        (changed(b"archive/version", b"archive/data.pk").replace(b"archive/data.pkl", b"archive/data.pk"), f"{LIES}"),
        (changed(b"archive/data.pkl", b"archive/data.pkx"), "it has no record 'data.pkl'; expected an archive of torch.save, so restore the file from a copy"),
        (changed(b"pickle", b"pickly"), f"it: the record 'data.pkl' has another CRC-32 than its header says{COPY}"),
    ],
)  # fmt: skip
def test_archives_that_lie_are_refused(data: bytes, said: str) -> None:
    assert refusal(data).startswith(said)


def test_both_sizes_changed_reach_into_what_follows() -> None:
    at = STORED.index(b"PK\1\2") + 20
    data = STORED[:at] + struct.pack("<II", 60, 60) + STORED[at + 8 :]
    assert refusal(data).startswith(f"{LIES}its record 'archive/data.pkl' reaches into")
    data = STORED[:at] + struct.pack("<II", 7, 7) + STORED[at + 8 :]
    assert (
        refusal(data) == f"{LIES}the headers of its record 'data.pkl' contradict each other{COPY}"
    )


def test_compressed_records_are_refused() -> None:
    assert refusal(archive(b"pickle", compression=ZIP_DEFLATED)) == (
        "it: the record 'archive/data.pkl' is compressed or encrypted; expected it as torch.save stores it, as it is; load the file "
        "with torch and save it again"
    )


def test_big_endian_is_refused() -> None:
    with pytest.raises(FormatError) as error:
        opened(archive(b"pickle", byteorder=b"big")).refuse_big_endian()
    assert str(error.value) == (
        "it holds big-endian numbers; load it with torch, and save it on a little-endian machine"
    )


def test_checksums_that_torch_did_not_compute_are_not_compared() -> None:
    crc = struct.pack("<I", zlib.crc32(b"pickle"))
    assert opened(changed(crc, bytes(4)).replace(b"pickle", b"pickly")).small("data.pkl") == b"pickly"  # fmt: skip


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (Most(4, 246, 5), "it has a record 'data.pkl' of 6 bytes; at most 5 are read"),
        (Most(3, 246, 6), "it has 4 records in a directory of 246 bytes; at most 3 records and 246 bytes are read"),
        (Most(4, 245, 6), "it has 4 records in a directory of 246 bytes; at most 4 records and 245 bytes are read"),
    ],
)  # fmt: skip
def test_limits(most: Most, said: str) -> None:
    with pytest.raises(FormatError) as error:
        open_archive(reader(STORED), len(STORED), "it", most).small("data.pkl")
    assert str(error.value) == said
    open_archive(reader(STORED), len(STORED), "it", Most(4, 246, 6)).small("data.pkl")


def test_programs_are_named() -> None:
    data = BytesIO()
    with ZipFile(data, "w", ZIP_DEFLATED) as file:
        file.writestr("net/data.pkl", b"pickle", ZIP_STORED)
        file.writestr("net/code/net.py", b"def f(): ...")
    assert refusal(data.getvalue()) == (
        "it is an archive of TorchScript (torch.jit.save), which holds a program; in torch, torch.save(torch.jit.load(FILE).state_dict(), "
        "'NAME.pt') writes its tensors, which are read"
    )


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.integers(0, 700))  # fmt: skip
def test_damaged_archives_are_answered_or_refused(flips: list[tuple[int, int]], end: int) -> None:
    data = bytearray(STORED)
    for at, byte in flips:
        data[at % len(data)] = byte
    for cut in (bytes(data), bytes(data[:end]), bytes(data[end % len(data) :])):
        try:
            found = opened(cut)
            for name in found.records:
                record, start = found.start(name)
                assert start + record.nbytes <= len(cut)
        except ReshardError as error:
            assert str(error)


WRITTEN = archive_of(b"pickle")
"""With the end records of ZIP64, as torch's."""

LOCATOR_AT = WRITTEN.index(LOCATOR_MAGIC)
END64_AT = WRITTEN.index(END64_MAGIC)


def put(at: int, data: bytes) -> bytes:
    return WRITTEN[:at] + data + WRITTEN[at + len(data) :]


def with_directory(size: int, count: int) -> bytes:
    """Another size and number of records in ZIP64's end record."""
    return put(END64_AT + 32, struct.pack("<2Q", count, size))


DIRECTORY_BYTES = END64_AT - WRITTEN.index(CENTRAL_MAGIC)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (put(LOCATOR_AT + 8, struct.pack("<Q", LOCATOR_AT)), "its ZIP64 end record is not before its locator"),
        (put(LOCATOR_AT + 8, struct.pack("<Q", END64_AT - 1)), "its ZIP64 end record is not where its locator says"),
        (with_directory(DIRECTORY_BYTES, 4), "its directory is cut short"),
        (with_directory(DIRECTORY_BYTES - 1, 3), "its directory is cut short"),
        (put(WRITTEN.index(CENTRAL_MAGIC), b"PK\3\3"), "its directory is cut short"),
        (with_directory(DIRECTORY_BYTES, 2), f"its directory has {DIRECTORY_BYTES} bytes, but its records take {DIRECTORY_BYTES - 61}"),
    ],
)  # fmt: skip
def test_end_records_that_lie(data: bytes, said: str) -> None:
    assert refusal(data) == f"{LIES}{said}{COPY}"
