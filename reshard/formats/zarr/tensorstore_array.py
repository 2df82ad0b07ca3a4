"""The TensorStore spec of an array whose codecs only TensorStore decodes; it is tried at once.

The spec is of an array of one chunk in memory, so that TensorStore decodes bytes that this project read: from any store, with
its credentials, and of the version that was listed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reshard.errors import FormatError
from reshard.formats.contents import Encoding
from reshard.formats.json.safe_json import expect, json_value
from reshard.formats.zarr.codec_chains import SUPPORTED
from reshard.formats.zarr.metadata import ZARR2_FILE


def tensorstore_encoding(
    data: bytes, file_name: str, chunk_shape: Sequence[int], stores_fill: bool, where: str
) -> Encoding:
    """The encoding with a spec that decodes one chunk.

    Args:
        data: the array's metadata, which ``parse_zarr`` has accepted.
        file_name: its file, ``.zarray`` or ``zarr.json``.
        chunk_shape: shape of one encoded chunk.
        stores_fill: whether a missing part of a chunk is an error; the spec then says so.
        where: tensor and file, for errors.

    Raises FormatError with TensorStore's message if it does not know the codecs.
    """
    import tensorstore as ts

    fields = expect(json_value(data, where), dict, "the array's metadata", where)
    is_zarr2 = file_name == ZARR2_FILE
    shape = list(chunk_shape)
    spec = {
        "driver": "zarr" if is_zarr2 else "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": _zarr2_chunk(fields, shape) if is_zarr2 else _zarr3_chunk(fields, shape),
        "fill_missing_data_reads": not stores_fill,
    }
    try:
        ts.open(spec, open=True, read=True, assume_metadata=True).result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise FormatError(
            f"{where}: its codecs are not supported (TensorStore: {str(error).splitlines()[0]}); "
            f"supported are {SUPPORTED}"
        ) from error
    return Encoding("tensorstore", spec=json.dumps(spec, sort_keys=True))


def _zarr2_chunk(fields: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    return fields | {"shape": shape, "chunks": shape, "dimension_separator": "."}


def _zarr3_chunk(fields: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("attributes", "dimension_names")} | {
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
    }  # fmt: skip
