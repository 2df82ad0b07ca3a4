"""Encoded chunks are read by TensorStore; what cannot be encoded is refused."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.errors import CorruptError, FormatError
from reshard.formats.codecs import (
    encode_chunk,
)
from reshard.formats.contents import CODECS, CODECS_TO_GIVE, Encoding, parse_compression
from tests.formats.codecs.chunk_cases import (
    CASES,
    bf16_array,
    chunk_file,
    decode,
    f4_array,
    placed,
    store_of,
)


@pytest.mark.parametrize("case", [c for c in CASES if c != "zarr2-zlib"])
@pytest.mark.parametrize("make", [f4_array, bf16_array])
def test_tensorstore_reads_encoded_chunks(case, make, tmp_path):
    array = make()
    encoding = CASES[case][1]
    store = store_of(case, array, tmp_path / case)
    data = b"".join(encode_chunk(encoding, array.view(f"u{array.itemsize}").data))
    file = chunk_file(case, tmp_path / case)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    assert store.read().result().tobytes() == array.tobytes()
    assert decode(encoding, placed(data, tmp_path), array.nbytes) == array.tobytes()


def test_the_compressors_in_words_are_given_encoded_and_decoded(tmp_path):
    names = [text.partition("[")[0] for text in CODECS_TO_GIVE.split(", ")]
    assert names == CODECS.replace(" or ", ", ").split(", ")
    array = f4_array()
    for name in names:
        encoding = parse_compression(name)
        assert encoding.compressor == name
        data = b"".join(encode_chunk(encoding, array.view("u4").data))
        assert decode(encoding, placed(data, tmp_path), array.nbytes) == array.tobytes()


def test_raw_chunks_are_encoded_without_a_copy():
    data = memoryview(bytearray(b"12345678"))
    parts = encode_chunk(Encoding(checksum=True), data)
    assert parts[0].obj is data.obj
    assert int.from_bytes(parts[1], "little") == 0x6087809A  # CRC32C of 12345678


def test_what_cannot_be_encoded_is_refused_by_name():
    with pytest.raises(
        FormatError, match="cannot be written with codec 'tensorstore'; choose none"
    ):
        encode_chunk(Encoding("tensorstore"), memoryview(b"x"))


def test_our_zstd_frames_carry_a_checksum(tmp_path):
    array = np.arange(1000, dtype=np.int32) // 7
    good = b"".join(encode_chunk(Encoding("zstd", 1), array.data))
    for at in range(4, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(CorruptError):
            decode(Encoding("zstd", 1), placed(bytes(bad), tmp_path), array.nbytes)
