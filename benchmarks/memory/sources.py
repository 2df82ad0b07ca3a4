"""Checkpoints for the memory benchmark, written by TensorStore with Orbax's metadata around them.

In a process of its own (``python -m benchmarks.memory.sources ROOT MIB TENSORS CHUNKS NAME…``), since
whoever measures others' memory must stay small.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

COLUMNS = 8192
DEVICES = 8
_CHUNK_ELEMENTS = 64

_ZSTD = {"id": "zstd", "level": 1}
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
_CODECS = {"zstd": _ZSTD, "gzip": {"id": "gzip", "level": 1}, "blosc": _BLOSC, "raw": None}


def make_sources(root: Path, names: Collection[str], mib: int, tensors: int, chunks: int) -> None:
    """Makes the named checkpoints below ``root``: a tensor of ``mib`` MiB each, cut and encoded as named."""
    words = [str(root), str(mib), str(tensors), str(chunks), *sorted(names)]
    command = [sys.executable, "-m", "benchmarks.memory.sources", *words]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)


def make_source(folder: Path, name: str, mib: int, tensors: int, chunks: int) -> None:
    """Makes one of them."""
    rows = mib * 32  # of 32 KiB each
    if name == "small":
        _write_small(folder, tensors)
    elif name == "chunks":
        shape = (chunks, _CHUNK_ELEMENTS)
        _write_database(folder, "w", shape, (1, _CHUNK_ELEMENTS))
    elif name == "cube":
        shape3 = (64, rows // 64 or 1, COLUMNS)
        _write_array(folder, shape3, (8, *shape3[1:]), _ZSTD, ocdbt=True)
    elif name.startswith("turned-"):
        _write_turned(folder, rows, *name.split("-")[1:])
    elif name.startswith("one-"):
        _write_array(folder, (rows, COLUMNS), (rows, COLUMNS), _CODECS[name[4:]], ocdbt=False)
    else:
        split = (rows, COLUMNS // DEVICES) if name in ("columns", "raw", "blosc") else None
        chunk = split or (rows // DEVICES, COLUMNS)
        codec = _CODECS.get(name, _ZSTD)
        _write_array(folder, (rows, COLUMNS), chunk, codec, ocdbt=name in ("rows", "columns"))


def _write_array(
    folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], codec: Any, *, ocdbt: bool
) -> None:
    """One float32 tensor ``w`` of whole numbers, which compress by half."""
    import numpy as np
    import tensorstore as ts

    folder.mkdir()
    file = {"driver": "file", "path": f"{folder}/"}
    at = {"driver": "file", "path": f"{folder}/w/"}
    store = {"driver": "ocdbt", "base": file, "path": "w/"} if ocdbt else at
    metadata = {"chunks": chunk, "compressor": codec, "dtype": "<f4", "shape": shape}
    spec = {"driver": "zarr", "kvstore": store, "metadata": metadata}
    array = ts.open(spec, create=True).result()
    rng = np.random.default_rng(0)
    values = rng.integers(0, 250, shape, np.uint8)
    array.write(values.astype(np.float32)).result()
    _write_tree(folder, [["w"]], use_ocdbt=ocdbt)


def _write_turned(folder: Path, rows: int, codec: str, form: str, chunk_mib: str) -> None:
    """The same tensor in chunks of whole rows; ``form`` says how zarr lays out the elements of a chunk.

    ``C2`` and ``F2``: order C and F of zarr 2; ``T3``: zarr 3's transpose; ``B2``: order F and big-endian, which only
    TensorStore decodes.
    """
    import numpy as np
    import tensorstore as ts

    folder.mkdir()
    is_zarr3, shape = form == "T3", [rows, COLUMNS]
    chunk = [min(rows, int(chunk_mib) * 32), COLUMNS]
    two = {"chunks": chunk, "compressor": _CODECS[codec], "dtype": ">f4" if form == "B2" else "<f4",
           "shape": shape, "order": "C" if form == "C2" else "F"}  # fmt: skip
    turn = {"name": "transpose", "configuration": {"order": [1, 0]}}
    kept = {key: value for key, value in (_CODECS[codec] or {}).items() if key != "id"}
    if codec == "blosc":
        kept |= {"shuffle": "shuffle", "typesize": 4}
    packed = [] if codec == "raw" else [{"name": codec, "configuration": kept}]
    three = {"shape": shape, "data_type": "float32",
             "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
             "codecs": [turn, {"name": "bytes", "configuration": {"endian": "little"}}, *packed]}  # fmt: skip
    store = {"driver": "file", "path": f"{folder}/w/"}
    metadata, driver = (three, "zarr3") if is_zarr3 else (two, "zarr")
    array = ts.open(
        {"driver": driver, "kvstore": store, "metadata": metadata}, create=True
    ).result()
    values = np.random.default_rng(0).integers(0, 250, shape, np.uint8)
    array.write(values.astype(np.float32)).result()
    _write_tree(folder, [["w"]], use_ocdbt=False, use_zarr3=is_zarr3)


def _write_database(
    folder: Path, name: str, shape: tuple[int, int], chunk: tuple[int, int]
) -> None:
    """A tensor of many tiny chunks, put into the database key by key."""
    import numpy as np

    folder.mkdir()
    values = np.arange(shape[1], dtype="<f4").tobytes()
    entries = ((f"{name}/{i}.0", values) for i in range(shape[0]))
    _write_values(folder, [(f"{name}/.zarray", _zarray(shape, chunk)), *entries])
    _write_tree(folder, [[name]], use_ocdbt=True)


def _write_small(folder: Path, count: int) -> None:
    """Many tensors of 4 KiB in a database with nodes as large as Orbax makes them."""
    import numpy as np

    folder.mkdir()
    values = np.arange(1024, dtype="<f4")
    names = [f"w{i:06d}" for i in range(count)]
    metadata = _zarray((32, 32), (32, 32))
    arrays = ((f"scales.{n}/.zarray", metadata) for n in names)
    chunks = ((f"scales.{n}/0.0", (values + i).tobytes()) for i, n in enumerate(names))
    _write_values(folder, [*arrays, *chunks])
    _write_tree(folder, [["scales", n] for n in names], use_ocdbt=True)


def _zarray(shape: tuple[int, ...], chunk: tuple[int, ...]) -> bytes:
    fields = {"zarr_format": 2, "shape": shape, "chunks": chunk, "dtype": "<f4", "order": "C"}
    rest = {"fill_value": None, "filters": None, "compressor": None, "dimension_separator": "."}
    return json.dumps({**fields, **rest}).encode()


def _write_values(folder: Path, values: Iterable[tuple[str, bytes]]) -> None:
    import tensorstore as ts

    config = {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000}
    base = {"driver": "file", "path": f"{folder}/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base, "config": config}).result()
    with ts.Transaction() as transaction:
        within = store.with_transaction(transaction)
        for key, value in values:
            within.write(key, value)


def _write_tree(
    folder: Path, paths: Iterable[list[str]], *, use_ocdbt: bool, use_zarr3: bool = False
) -> None:
    value = {"value_type": "jax.Array", "skip_deserialize": False}
    entries = {
        str(tuple(path)): {
            "key_metadata": [{"key": key, "key_type": 2} for key in path],
            "value_metadata": value,
        }
        for path in paths
    }
    document = {
        "tree_metadata": entries,
        "use_ocdbt": use_ocdbt,
        "use_zarr3": use_zarr3,
        "store_array_data_equal_to_fill_value": True,
    }
    (folder / "_METADATA").write_text(json.dumps(document))


if __name__ == "__main__":
    root, mib, tensors, chunks, *names = sys.argv[1:]
    for name in names:
        make_source(Path(root) / name, name, int(mib), int(tensors), int(chunks))
