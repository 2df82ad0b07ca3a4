"""Reads slices of tensors as arrays, and downloads one device's shards as a file."""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from reshard import LayoutMap, WeightsIdentity
from reshard.arguments import cast_pairs
from reshard.errors import PlanError, StorageError
from reshard.geometry.dtypes import PACKED, storage_bytes
from reshard.identity.leaf_tree import checked_root
from reshard.layout.changes import full_name
from reshard.planning.rules import kept_names
from reshard_server.client.proofs import (
    ShardFile,
    WantedSlice,
    bounded,
    fetched_identity,
    fetched_proof,
    wanted_slice,
)
from reshard_server.client.resources import layout_of
from reshard_server.client.transport import Transport, UnreachableError

if TYPE_CHECKING:
    import numpy as np

    from reshard.arguments import CastRules, DTypeLike

URL = "/v1/tensors"
GOES_ON = 5
"""Most times that an interrupted download is resumed."""


@dataclass(frozen=True)
class Tensors:
    """Tensors of a server's checkpoints.

    Attributes:
        known: the identities that slices were checked against, by their roots.
    """

    transport: Transport
    known: dict[str, WeightsIdentity] = field(default_factory=dict, repr=False, compare=False)

    def read(
        self,
        checkpoint: str,
        name: str,
        slice: str | None = None,  # noqa: A002  the name of the parameter
        dtype: DTypeLike | None = None,
        *,
        identity: str | None = None,
        **more: Any,
    ) -> np.ndarray[Any, Any]:
        """A slice of a tensor (``"0:128,:"``) as a numpy array; takes ``step`` and ``item``.

        Elements of several values, for which numpy has no type (``float4_e2m1fn_x2``), are given as bytes.

        Args:
            identity: the root that the weights must have, 64 hex digits, from a place that you trust. The slice is checked by a
                proof, so neither the server nor its storage need be trusted. The smallest slice around it with a proof is
                pulled, and cut. Needs the extra ``identity``.

        Raises VerificationError if the slice is not part of that identity.
        """
        import ml_dtypes
        import numpy as np

        if identity is not None:
            asked = {"checkpoint": checkpoint, **{k: v for k, v in more.items() if v is not None}}
            if dtype is not None:
                raise PlanError(
                    "a slice that is cast has other bits than the identity; leave out dtype, and cast the array that you get"
                )
            return self._pulled(asked, wanted_slice(self._known(asked, identity), name, slice))
        query = {"checkpoint": checkpoint, "name": name, "slice": slice, "dtype": dtype, **more}
        if dtype is not None:
            query["dtype"] = full_name(dtype)
        taken = bytearray()
        headers = self._take({k: v for k, v in query.items() if v is not None}, taken.extend)
        found, shape = headers["X-Reshard-Dtype"], json.loads(headers["X-Reshard-Shape"])
        if found in PACKED:
            row_bytes = shape[-1] * storage_bytes(found)
            return np.frombuffer(taken, np.uint8).reshape(*shape[:-1], row_bytes)
        return np.frombuffer(taken, np.dtype(getattr(ml_dtypes, found, found))).reshape(shape)

    def _known(self, asked: Mapping[str, Any], identity: str) -> WeightsIdentity:
        root = checked_root("identity", identity)
        if root not in self.known:
            self.known[root] = fetched_identity(self.transport, asked, root)
        return self.known[root]

    def _pulled(self, asked: Mapping[str, Any], wanted: WantedSlice) -> np.ndarray[Any, Any]:
        """The wanted slice, after a check of the smallest slice around it with a proof."""
        query = {**asked, "name": wanted.tensor.name, "slice": wanted.text}
        taken = bytearray()
        headers = self._take(query, wanted.bounded(taken))
        sent = headers.get("X-Reshard-Proof")
        proof = fetched_proof(self.transport, query, wanted) if sent is None else sent.strip(":")
        return wanted.checked(taken, proof)

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
        cast: CastRules = (),
        identity: str | None = None,
    ) -> Path:
        """Downloads the slices of one device of a layout, as a safetensors file that appears only when complete.

        Args:
            identity: as for ``read``. Before the file appears, every slice is checked, and none may be missing; a slice that cuts tiles of
                the identity is pulled a second time for that. The file itself lists the slices of the device, in ``reshard.slices``.

        Raises VerificationError if the file is not part of that identity.
        """
        if identity is not None and cast_pairs(cast):
            raise PlanError(
                "a shard that is cast has other bits than the identity; leave out cast, and cast the arrays that you load"
            )
        query: dict[str, Any] = {
            "checkpoint": checkpoint,
            "shard": shard,
            "layout": json.dumps(layout_of(layout)) if isinstance(layout, Mapping) else layout,
            "mesh": mesh,
            "select": list(select),
            "drop": list(drop),
            "cast": [f"{pattern}={dtype}" for pattern, dtype in cast_pairs(cast)],
        }
        known = None if identity is None else self._known({"checkpoint": checkpoint}, identity)
        names = kept_names(select, drop, list(known.tensors)) if known is not None else []
        target = Path(file)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        try:
            with partial.open("xb") as out:
                put = out.write if known is None else bounded(out.write, known, names)
                self._take({k: v for k, v in query.items() if v not in (None, [])}, put)
            if known is not None:
                self._check_shard(partial, target, checkpoint, known, names)
            partial.replace(target)
        except OSError as error:
            raise StorageError(
                f"cannot write {str(target)!r}: {error.strerror}; check the folder and its free space"
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        return target

    def _check_shard(
        self,
        partial: Path,
        target: Path,
        checkpoint: str,
        known: WeightsIdentity,
        names: Collection[str],
    ) -> None:
        asked = {"checkpoint": checkpoint}

        def proof(wanted: WantedSlice) -> str:
            about = {**asked, "name": wanted.tensor.name, "slice": wanted.text}
            return fetched_proof(self.transport, about, wanted)

        read = functools.partial(self._pulled, asked)
        ShardFile(partial, str(target), known, names, proof, read).check()

    def _take(self, query: Mapping[str, Any], put: Any) -> httpx.Headers:
        """Passes all bytes to ``put`` in order; resumes an interrupted download."""
        taken, tag = 0, ""
        for attempt in range(GOES_ON + 1):
            more = {"Range": f"bytes={taken}-", "If-Range": tag} if taken else {}
            try:
                with self.transport.stream(URL, params=query, headers=more) as answer:
                    _check_same(answer, tag, query)
                    tag = answer.headers["ETag"]
                    for piece in answer.iter_raw():
                        put(piece)
                        taken += len(piece)
                    return answer.headers
            except UnreachableError:
                if attempt == GOES_ON:
                    raise
        raise AssertionError("unreachable")


def _check_same(answer: httpx.Response, tag: str, query: Mapping[str, Any]) -> None:
    """Raises ServiceError if the checkpoint changed between two parts."""
    if tag and (answer.status_code != httpx.codes.PARTIAL_CONTENT or answer.headers["ETag"] != tag):
        raise StorageError(
            f"{query['checkpoint']} changed during the download; download it again, and let no process write to a "
            "checkpoint that is being read"
        )
