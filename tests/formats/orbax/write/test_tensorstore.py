"""TensorStore reads the arrays of a written checkpoint: of every dtype and encoding, and from chunks of Zarr 2 that pass through."""

import shutil

import numpy as np
import pytest
import tensorstore as ts

from reshard.formats.contents import Encoding
from reshard.formats.file_map import finish_files, prepare_files
from reshard.formats.orbax.format import OrbaxForm
from reshard.formats.orbax.write_files import plan_files
from reshard.geometry.dtypes import DTYPES, numpy_dtype
from reshard.storage.location import locate
from tests.formats.orbax.write.markers import write_markers
from tests.formats.orbax.write.reading import assert_same, read_array

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

WRITABLE = [d for d in DTYPES if d not in ("uint2", "uint4", "float8_e4m3")]


@pytest.mark.parametrize("dtype", WRITABLE)
def test_tensorstore_reads_every_dtype(making, tmp_path, dtype):
    random = np.random.default_rng(0).integers(0, 256, (4, 6, numpy_dtype(dtype).itemsize), "u1")
    value = random.view(numpy_dtype(dtype))[..., 0]
    if dtype in ("bool", "int2", "int4", "float4_e2m1fn"):
        value = (random[..., 0] % 2).astype(numpy_dtype(dtype))
    path = making.write(tmp_path / "ckpt", [making.Entry(("w",), value, chunk=(3, 4))])
    assert_same(read_array(path / "w"), value)


BLOSC = '{"cname": "lz4", "shuffle": 1}'


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(),
        Encoding(checksum=True),
        Encoding("zstd", 3),
        Encoding("zstd", checksum=True),
        Encoding("gzip", 1),
        Encoding("gzip", checksum=True),
        Encoding("blosc", 5, spec=BLOSC),
        Encoding("blosc", 5, checksum=True, spec=BLOSC),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 6), (3, 4, 5)], ids=str)
def test_tensorstore_reads_every_encoding(making, tmp_path, encoding, shape):
    value = np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape)
    chunk = tuple(min(2, max(1, n)) for n in shape)
    entry = making.Entry(("w",), value, chunk=chunk, encoding=encoding)
    assert_same(read_array(making.write(tmp_path / "ckpt", [entry]) / "w"), value)


@pytest.mark.parametrize(
    ("compressor", "encoding"),
    [
        ({"id": "zstd", "level": 1}, Encoding("zstd", 1)),
        (
            {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1},
            Encoding("blosc", 5, spec='{"cname": "lz4", "shuffle": -1, "blocksize": 0}'),
        ),
        (
            {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2},
            Encoding("blosc", 3, spec='{"cname": "zstd", "shuffle": "bitshuffle"}'),
        ),
        (None, Encoding()),
    ],
    ids=str,
)
def test_chunks_of_zarr2_pass_through_as_they_are(making, tmp_path, compressor, encoding):
    value = np.arange(35, dtype="f4").reshape(5, 7)
    metadata = {"shape": [5, 7], "chunks": [2, 4], "dtype": "<f4", "compressor": compressor}
    kvstore = {"driver": "file", "path": str(tmp_path / "zarr2")}
    spec = {"driver": "zarr", "kvstore": kvstore, "create": True, "metadata": metadata}
    ts.open(spec).result().write(value).result()
    entry = making.Entry(("w",), value, chunk=(2, 4), encoding=encoding)
    files = plan_files(making.target_of([entry]), OrbaxForm())
    prepare_files(files, locate(tmp_path / "ckpt"))
    for index in entry.target.spec.storage.indices():
        chunk = tmp_path / "zarr2" / ".".join(map(str, index))
        shutil.copyfile(chunk, tmp_path / "ckpt" / files.places("w", index)[0].file)
    write_markers(tmp_path / "ckpt", finish_files(files, locate(tmp_path / "ckpt"), {}, ()))
    assert_same(read_array(tmp_path / "ckpt" / "w"), value)
