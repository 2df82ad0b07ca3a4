"""Encoding and decoding take no more memory than their price."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import asdict

from reshard.formats.codecs import (
    decoder_bytes,
    encode_chunk,
    encoder_bytes,
)
from reshard.formats.contents import Encoding
from tests.formats.codecs.chunk_cases import (
    CASES,
)
from tests.formats.codecs.decoding import growth


@pytest.mark.parametrize(
    "case",
    ["zarr2-raw", "zarr2-zstd", "zarr2-gzip", "zarr2-lz4", "zarr2-blosc-big-blocks", "zarr3-crc"],
)
def test_decoding_stays_within_its_price(case, tmp_path):
    encoding, nbytes = CASES[case][1], 48 << 20
    values = np.random.default_rng(0).integers(0, 50, nbytes // 4).astype(np.float32)
    if case in {"zarr2-gzip", "zarr2-blosc-big-blocks"}:  # slow to make
        values[nbytes // 64 :] = 1
    data = b"".join(encode_chunk(encoding, values.data))
    found, error = growth(encoding, data, nbytes, tmp_path)
    assert error == ""
    allowed = decoder_bytes(encoding, nbytes)
    assert found <= allowed + (2 << 20)
    assert allowed < 32 << 20


ENCODE = """
import json, sys
import numpy as np
from reshard.formats.contents import Encoding
from reshard.formats.codecs import encode_chunk
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024
encoding, nbytes = json.loads(sys.argv[1])
encoding = Encoding(**encoding)
data = np.random.default_rng(0).integers(0, 1 << 32, nbytes // 4, np.uint32)
encode_chunk(encoding, data[:1024].data)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
parts = encode_chunk(encoding, data.data)
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize(
    "case",
    [
        "zarr3-crc",
        "zarr3-zstd-crc",
        "zarr2-gzip",
        "zarr2-lz4",
        "zarr2-blosc-zstd",
        "zarr2-blosc-big-blocks",
    ],
)
def test_encoding_stays_within_its_price(case):
    encoding, nbytes = CASES[case][1], 12 << 20
    argument = json.dumps([asdict(encoding), nbytes])
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, argument], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= encoder_bytes(encoding, nbytes) + (1 << 20)


def test_prices_are_arithmetic():
    assert decoder_bytes(Encoding(), 1 << 40) == 0
    assert decoder_bytes(Encoding("zstd", 1), 1 << 40) < 3 << 20
    assert decoder_bytes(Encoding("zstd", None), 1 << 40) > 8 << 20
    assert 1 << 27 < decoder_bytes(Encoding("zstd", 22), 1 << 40) < 1 << 28
    assert decoder_bytes(Encoding("tensorstore"), 1 << 20) > 1 << 20
    assert decoder_bytes(Encoding("blosc", spec='{"blocksize": 4194304}'), 1 << 30) > 4 << 20
    for compressor in ("zstd", "gzip", "blosc"):
        assert encoder_bytes(Encoding(compressor, 1), 1 << 20) > 1 << 20
    assert encoder_bytes(Encoding(), 1 << 30) < 64
