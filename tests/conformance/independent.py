"""Reading checkpoints without reshard: TensorStore reads Orbax, the safetensors library reads safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import tensorstore as ts

Read = dict[str, np.ndarray]
"""Arrays by name, the keys of which are joined with slashes."""

_DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8",
    "U16": "uint16", "U32": "uint32", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


def read_orbax(path: Path) -> Read:
    """The arrays of an Orbax checkpoint of one tree. Its files have names whose keys are joined with dots."""
    metadata = json.loads((path / "_METADATA").read_text())
    driver = "zarr3" if metadata["use_zarr3"] else "zarr"
    found: Read = {}
    for entry in metadata["tree_metadata"].values():
        value = entry["value_metadata"]
        if not value["skip_deserialize"] and value["value_type"] != "string":
            keys = [str(key["key"]) for key in entry["key_metadata"]]
            found["/".join(keys)] = _array(path, ".".join(keys), driver)
    return found


def _array(path: Path, name: str, driver: str) -> np.ndarray:
    if (path / "manifest.ocdbt").exists():
        store: Any = {"driver": "ocdbt", "base": f"file://{path}/", "path": name}
    else:
        store = {"driver": "file", "path": f"{path}/{name}"}
    opened = ts.open({"driver": driver, "kvstore": store}, open=True).result()
    return np.asarray(opened.read().result())


def read_safetensors(path: Path) -> Read:
    """The arrays of a safetensors checkpoint, put together of the slices of its files."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found: Read = {}
    filled: dict[str, np.ndarray] = {}
    for file in files:
        content = file.read_bytes()
        slices = _slices(content)
        for name, stored in safetensors.deserialize(content):
            kind = np.dtype(getattr(ml_dtypes, _DTYPES[stored["dtype"]], _DTYPES[stored["dtype"]]))
            array = np.frombuffer(stored["data"], kind).reshape(stored["shape"])
            at = slices.get(name, {"offset": [0] * array.ndim, "full_shape": array.shape})
            box = tuple(slice(o, o + n) for o, n in zip(at["offset"], array.shape, strict=True))
            if name not in found:
                found[name] = np.empty(at["full_shape"], kind)
                filled[name] = np.zeros(at["full_shape"], bool)
            if filled[name][box].any():  # a replica
                assert found[name][box].tobytes() == array.tobytes(), name
            found[name][box] = array
            filled[name][box] = True
    assert all(whole.all() for whole in filled.values())
    return found


def _slices(content: bytes) -> dict[str, Any]:
    """The offsets of the slices and the full shapes, where a file has them."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    return json.loads(metadata.get("reshard.slices", '{"tensors": {}}'))["tensors"]
