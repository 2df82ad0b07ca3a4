"""A journal in a bucket, whose records somebody changed, with checksums that are right: what it says is not believed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from reshard.engine.task import Result, StoredChunk
from reshard.storage.checked_lines import checked_line, valid_lines
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.robustness.buckets.cases import convert, is_taken_for_one, keys, nothing_is_left

pytestmark = pytest.mark.usefixtures("_small")

CHANGES: dict[str, Callable[[StoredChunk], StoredChunk]] = {
    "a version more": lambda chunk: replace(chunk, versions=(*chunk.versions, "1")),
    "another version": lambda chunk: replace(chunk, versions=("1",)),
    "another size": lambda chunk: replace(chunk, stored_bytes=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_chunk_that_is_not_as_recorded_is_written_anew(
    change: str, bucket: Bucket, tiny: Path
) -> None:
    bucket.emulator.faults.add(Refuse(answers.EXPIRED_TOKEN), operation="put", key="rows/c")
    with pytest.raises(Exception, match="the credentials have expired"):
        convert(bucket, tiny, "raw")
    bucket.emulator.faults.clear()
    segments = [key for key in keys(bucket) if re.search(r"/journal/\d+-0*[1-9]\d*$", key)]
    assert segments
    for key in segments:
        stored = b"".join(bucket.emulator.objects.get(bucket.name, key).segments)
        lines = [changed(line, CHANGES[change]) for line in valid_lines(stored)]
        bucket.store().put(key, b"".join(lines))
    assert convert(bucket, tiny, "raw").resumed_bytes == 0
    assert is_taken_for_one(bucket, tiny)
    nothing_is_left(bucket)


def changed(line: bytes, change: Callable[[StoredChunk], StoredChunk]) -> bytes:
    found = msgspec.json.decode(line, type=list[Result])
    made = [replace(one, chunks=tuple(map(change, one.chunks))) for one in found]
    return checked_line(msgspec.json.encode(made).decode())
