"""CRCs that are put together from those of parts."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from reshard.checksums.crc import CRC32C, CRC32C_OF_CHECKED, CRC64NVME, crc_of_parts


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5), st.randoms())
def test_parts_in_any_order_are_joined(data: bytes, cuts: list[int], random: Random) -> None:
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for crc in (CRC32C, CRC64NVME):
        parts = [(a, b - a, crc.of(data[a:b])) for a, b in pairwise(ends)]
        random.shuffle(parts)
        assert crc_of_parts(crc, parts, len(data)) == crc.of(data)


@given(st.binary(max_size=100))
def test_bytes_that_are_followed_by_their_crc32c(data: bytes) -> None:
    assert CRC32C.of(data + CRC32C.of(data).to_bytes(4, "little")) == CRC32C_OF_CHECKED
