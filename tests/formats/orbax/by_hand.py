"""Orbax items written by hand: TensorStore writes the arrays, the metadata is plain JSON.

For what stock Orbax cannot be made to write: other codecs, and damage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

Metadata = dict[str, Any]


def write_item(
    directory: Path, arrays: Mapping[str, tuple[np.ndarray, Metadata]], **tree: Any
) -> Path:
    """An item of top-level arrays, each with the zarr metadata it is to be written with.

    ``ocdbt=True`` puts them in a database, else they are plain files; other arguments are members
    of ``_METADATA``.
    """
    directory.mkdir(parents=True)
    is_ocdbt = tree.pop("ocdbt", False)
    for name, (array, metadata) in arrays.items():
        write_array(directory, name, array, metadata, ocdbt=is_ocdbt)
    write_tree(directory, [[name] for name in arrays], **tree)
    return directory


def write_array(
    directory: Path, name: str, array: np.ndarray, metadata: Metadata, *, ocdbt: bool
) -> None:
    """One array by TensorStore, every chunk stored."""
    file = {"driver": "file", "path": f"{directory}/"}
    kvstore = {"driver": "ocdbt", "base": file} if ocdbt else file
    spec = {
        "driver": "zarr3" if "codecs" in metadata else "zarr",
        "kvstore": {**kvstore, "path": f"{name}/" if ocdbt else f"{directory}/{name}/"},
        "metadata": metadata,
        "store_data_equal_to_fill_value": True,
    }
    store = ts.open(spec, create=True, dtype=array.dtype.name, shape=array.shape).result()
    store.write(array).result()


def write_tree(directory: Path, paths: Sequence[Sequence[Any]], **members: Any) -> None:
    """``_METADATA`` with a tensor at each path, whose keys are text, or (text, key_type)."""
    entries = {}
    for path in paths:
        keys = [key if isinstance(key, tuple) else (key, 2) for key in path]
        entries[str(tuple(k for k, _ in keys))] = {
            "key_metadata": [{"key": k, "key_type": t} for k, t in keys],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
    document = {
        "tree_metadata": entries,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        **members,
    }
    (directory / "_METADATA").write_text(json.dumps(document))


def zarr2(chunks: Sequence[int], **members: Any) -> Metadata:
    """zarr 2 metadata, uncompressed unless it says otherwise."""
    return {"chunks": list(chunks), "compressor": None, **members}


def zarr3(chunks: Sequence[int], *codecs: Any, **members: Any) -> Metadata:
    """zarr 3 metadata with these codecs, each a name or a whole entry; ``bytes`` if none."""
    entries = [
        c if isinstance(c, dict) else LITTLE if c == "bytes" else {"name": c} for c in codecs
    ]
    return {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "codecs": entries or [LITTLE],
        **members,
    }


LITTLE: Metadata = {"name": "bytes", "configuration": {"endian": "little"}}


def sharded(inner: Sequence[int], *codecs: Any, **members: Any) -> Metadata:
    """A ``sharding_indexed`` codec with inner chunks of that shape."""
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(inner),
            "codecs": zarr3(inner, *codecs)["codecs"],
            "index_codecs": [LITTLE, {"name": "crc32c"}],
            **members,
        },
    }
