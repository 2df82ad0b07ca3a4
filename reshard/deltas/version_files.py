"""The files of a delta: payloads in safetensors files of bounded size, and the index that commits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from reshard.deltas.payloads import TensorPayload
from reshard.formats.safetensors.write.header import HeaderEntry, safetensors_header
from reshard.storage.local.spool import Spool
from reshard.storage.location import Location


class PayloadFile(Struct, frozen=True):
    """A file of a delta."""

    name: str
    payloads: tuple[TensorPayload, ...]


def payload_files(payloads: Sequence[TensorPayload], file_bytes: int) -> list[PayloadFile]:
    """The files of payloads, in their order; a payload that is larger than a file has one of its own."""
    groups: list[list[TensorPayload]] = []
    taken = 0
    for payload in payloads:
        nbytes = payload.frame.nbytes
        if not groups or taken + nbytes > file_bytes:
            groups.append([])
            taken = 0
        groups[-1].append(payload)
        taken += nbytes
    count = len(groups)
    return [
        PayloadFile(f"model-{number:05d}-of-{count:05d}.safetensors", tuple(group))
        for number, group in enumerate(groups)
    ]


def write_payload_files(
    files: Sequence[PayloadFile], root: Location, spool: Spool, workers: int
) -> int:
    """Writes the files, several at once; returns their bytes."""
    with ThreadPoolExecutor(max(1, min(workers, len(files))), "reshard.delta") as threads:
        return sum(threads.map(partial(_write, root=root, spool=spool), files))


def weight_map(files: Sequence[PayloadFile]) -> Mapping[str, str]:
    """The file of each tensor."""
    return {one.spec.name: file.name for file in files for one in file.payloads}


def _write(file: PayloadFile, root: Location, spool: Spool) -> int:
    entries = [HeaderEntry(p.spec.name, "uint8", (p.frame.nbytes,)) for p in file.payloads]
    header = safetensors_header(entries, {p.spec.name: p.digests[1] for p in file.payloads})
    nbytes = len(header) + sum(entry.nbytes for entry in entries)
    (root / file.name).write_pieces(_pieces(file, header, spool), nbytes)
    return nbytes


def _pieces(file: PayloadFile, header: bytes, spool: Spool) -> Iterator[bytes]:
    yield header
    for payload in file.payloads:
        yield from spool.read(payload.frame)
