"""Files that are uploaded in order while their chunks are made."""

from __future__ import annotations

from typing import Any

import pytest

from reshard.engine.output import Uploads
from reshard.errors import VerificationError
from reshard.formats.file_map import Place, SharedFile
from reshard.storage import target
from reshard.storage.location import locate


def test_a_chunk_that_is_not_the_next_of_its_file_is_refused(s3_bucket: Any) -> None:
    root = locate(f"{s3_bucket.url}/run/7")
    uploads = Uploads(root, lambda _: SharedFile(b"head", 12))
    assert uploads.write(Place("f", 4), (b"12", b"34")) == ""
    for start in (4, 10):
        with pytest.raises(
            VerificationError,
            match=rf"a chunk at {start} of .*/run/7/f was made after the first 8 bytes; this is a defect",
        ):
            uploads.write(Place("f", start), (b"5678",))
    assert uploads.write(Place("f", 8), (b"5678",))
    assert (root / "f").open().read(0, 99) == b"head12345678"


def test_a_file_of_many_pieces_has_them_in_order(
    s3_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "PIECE_BYTES", 8)
    root = locate(f"{s3_bucket.url}/run/7")
    chunks = [bytes([number]) * 20 for number in range(5)]
    uploads = Uploads(root, lambda _: SharedFile(b"head", 104))
    versions = [
        uploads.write(Place("f", 4 + 20 * number), (chunk,)) for number, chunk in enumerate(chunks)
    ]
    assert (versions[:4], bool(versions[4])) == ([""] * 4, True)
    assert (root / "f").open().read(0, 999) == b"head" + b"".join(chunks)
