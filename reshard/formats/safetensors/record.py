"""What this project records in safetensors files: names of metadata, and a digest of each header.

The text of ``__metadata__`` has:

- ``reshard.crc64nvme``: CRC-64/NVME, 16 hex digits, of all bytes before the tensors, taken with zeros for these digits;
- ``reshard.slices``: for a file that holds slices, where they belong (see ``slices``);
- ``reshard.record``: for a checkpoint of one file, the text that is ``slices.json`` in a folder.
"""

from __future__ import annotations

from collections.abc import Mapping

from reshard.errors import CorruptError
from reshard.formats.slices.slice_file import digest_of

HEADER_DIGEST = "reshard.crc64nvme"
RECORD = "reshard.record"

NO_DIGEST = "0" * 16
"""In place of the digits of a digest that is not known yet."""

_MARK = f'"{HEADER_DIGEST}":"'.encode()


def with_digest(header: bytes) -> bytes:
    """The header with its digest in place of the zeros."""
    at = header.index(_MARK) + len(_MARK)
    return header[:at] + digest_of(header).encode() + header[at + len(NO_DIGEST) :]


def check_header(header: bytes, metadata: Mapping[str, str], path: str) -> None:
    """Raises CorruptError where a header records a digest, and has another one."""
    recorded = metadata.get(HEADER_DIGEST)
    if recorded is None:
        return
    at = header.find(_MARK) + len(_MARK)
    end = at + len(NO_DIGEST)
    blank = header[:at] + NO_DIGEST.encode() + header[end:]
    if header[at:end] != recorded.encode() or digest_of(blank) != recorded:
        raise CorruptError(
            f"the header of {path} is not what reshard wrote: it records the digest {recorded[:40]!r} of itself, which it "
            f"does not have; restore the file from a copy, or, if it was changed on purpose, remove {HEADER_DIGEST!r} from "
            "its metadata"
        )
