"""Slices on demand: arrays, and files of one device's shards."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from reshard import LayoutMap
from reshard.errors import StorageError
from reshard_server.client.failures import UnreachableError
from reshard_server.client.layouts import layout_of
from reshard_server.client.transport import Transport

if TYPE_CHECKING:
    import numpy as np

URL = "/v1/tensors"
GOES_ON = 5
"""Times that an interrupted download is resumed."""


@dataclass(frozen=True)
class Tensors:
    """Bytes of tensors of a server's checkpoints."""

    transport: Transport

    def read(
        self,
        checkpoint: str,
        name: str,
        slice: str | None = None,  # noqa: A002
        dtype: str | None = None,
        **more: Any,
    ) -> np.ndarray[Any, Any]:
        """A slice of a tensor (``"0:128,:"``) as a numpy array; ``step`` and ``item`` choose within a run's folder."""
        import ml_dtypes
        import numpy as np

        asked = {"checkpoint": checkpoint, "name": name, "slice": slice, "dtype": dtype, **more}
        taken = bytearray()
        headers = self._take({k: v for k, v in asked.items() if v is not None}, taken.extend)
        found = headers["X-Reshard-Dtype"]
        kind = np.dtype(getattr(ml_dtypes, found, found))
        return np.frombuffer(taken, kind).reshape(json.loads(headers["X-Reshard-Shape"]))

    def download_shard(
        self,
        checkpoint: str,
        shard: int,
        file: str | os.PathLike[str],
        *,
        layout: str | Mapping[str, Any] | LayoutMap | None = None,
        mesh: str | None = None,
        select: Sequence[str] = (),
        drop: Sequence[str] = (),
        cast: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> Path:
        """What one device of a layout holds, as a safetensors file that appears whole or not at all."""
        pairs = cast.items() if isinstance(cast, Mapping) else cast
        asked: dict[str, Any] = {
            "checkpoint": checkpoint,
            "shard": shard,
            "layout": json.dumps(layout_of(layout)) if isinstance(layout, Mapping) else layout,
            "mesh": mesh,
            "select": list(select),
            "drop": list(drop),
            "cast": [f"{pattern}={dtype}" for pattern, dtype in pairs],
        }
        target = Path(file)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        try:
            with partial.open("xb") as out:
                self._take({k: v for k, v in asked.items() if v not in (None, [])}, out.write)
            partial.replace(target)
        except OSError as error:
            raise StorageError(
                f"cannot write {str(target)!r}: {error.strerror}; check the folder and the space in it"
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        return target

    def _take(self, asked: Mapping[str, Any], put: Any) -> httpx.Headers:
        """Hands over every byte, in order; an interrupted download resumes where it stopped."""
        taken, tag = 0, ""
        for attempt in range(GOES_ON + 1):
            more = {"Range": f"bytes={taken}-", "If-Range": tag} if taken else {}
            try:
                with self.transport.stream(URL, params=asked, headers=more) as answer:
                    _check_same(answer, tag, asked)
                    tag = answer.headers["ETag"]
                    for piece in answer.iter_raw():
                        put(piece)
                        taken += len(piece)
                    return answer.headers
            except UnreachableError:
                if attempt == GOES_ON:
                    raise
        raise AssertionError("unreachable")


def _check_same(answer: httpx.Response, tag: str, asked: Mapping[str, Any]) -> None:
    """Refuses to join what was sent of two states."""
    if tag and (answer.status_code != httpx.codes.PARTIAL_CONTENT or answer.headers["ETag"] != tag):
        raise StorageError(
            f"{asked['checkpoint']} was changed while it was downloaded; download it again, and let nothing write into a "
            "checkpoint that is read"
        )
