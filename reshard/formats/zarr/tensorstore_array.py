"""The TensorStore spec of an array whose codecs only TensorStore decodes; it is tried at once."""

from __future__ import annotations

import json
from typing import Any

from reshard.errors import FormatError
from reshard.formats.base import Encoding
from reshard.formats.zarr.codec_chains import SUPPORTED
from reshard.formats.zarr.metadata import ZARR2_FILE


def tensorstore_encoding(
    kvstore: dict[str, Any], file_name: str, stores_fill: bool, where: str
) -> Encoding:
    """The encoding with a spec that opens the whole array.

    Args:
        kvstore: spec of the store below the array's key.
        file_name: its metadata file, ``.zarray`` or ``zarr.json``.
        stores_fill: whether a missing chunk is an error; the spec then says so.
        where: tensor and file, for errors.

    Raises FormatError with TensorStore's message if it does not open the array.
    """
    import tensorstore as ts

    spec = {
        "driver": "zarr" if file_name == ZARR2_FILE else "zarr3",
        "kvstore": kvstore,
        "fill_missing_data_reads": not stores_fill,
    }
    try:
        ts.open(spec, open=True, read=True).result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise FormatError(
            f"{where}: its codecs are not supported (TensorStore: {str(error).splitlines()[0]}); "
            f"supported are {SUPPORTED}"
        ) from error
    return Encoding("tensorstore", spec=json.dumps(spec, sort_keys=True))
