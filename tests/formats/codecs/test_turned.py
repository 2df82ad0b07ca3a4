"""Chunks that store their axes in another order: every range of their row-major elements, in bounded memory."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from reshard.errors import CorruptError
from reshard.formats.codecs import decoder_bytes, encode_chunk, is_seekable, open_stream
from reshard.formats.contents import Encoding, Extent

SHAPE = (3, 4, 5)
ARRAY = np.arange(60, dtype=np.int16).reshape(SHAPE)
ORDERS = list(itertools.permutations(range(3)))[1:]


def opened(encoding, order, array=ARRAY, cut=None):
    stored = np.ascontiguousarray(array.transpose(order))
    data = b"".join(map(bytes, encode_chunk(encoding, memoryview(stored))))[:cut]
    turned = Encoding(encoding.compressor, encoding.level, encoding.checksum, axis_order=order)
    extent = Extent("memory", 0, len(data), inline=data)
    return open_stream(turned, extent, array.nbytes, "tensor 'x', chunk [0]", shape=array.shape)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("compressor", ["none", "zstd", "gzip", "blosc"])
def test_elements_are_row_major_in_reads_of_any_length(compressor, order):
    stream, found = opened(Encoding(compressor, checksum=True), order), []
    for count in (1, 7, 0, 20, 32):
        part = np.empty(count, np.int16)
        stream.readinto(part.view(np.uint8).data)
        found.append(part)
    assert np.concatenate(found).tolist() == list(range(60))
    assert stream.close_checked()


def test_skipped_elements_are_checked_too():
    stream = opened(Encoding("zstd", checksum=True), (2, 1, 0))
    stream.skip(2 * 41)
    part = np.empty(3, np.int16)
    stream.readinto(part.view(np.uint8).data)
    assert part.tolist() == [41, 42, 43]
    with pytest.raises(ValueError, match="34 bytes are requested, but 32 are left"):
        stream.skip(34)
    assert stream.close_checked()


@pytest.mark.parametrize("compressor", ["zstd", "gzip", "none"])
def test_a_chunk_that_is_cut_off_is_damage_even_if_nothing_of_it_was_read(compressor):
    with pytest.raises(CorruptError, match=r"tensor 'x', chunk \[0\]"):
        opened(Encoding(compressor), (2, 1, 0), cut=-3).close_checked()


def test_its_price_is_one_copy_of_the_chunk():
    array = np.zeros((1024, 1024), np.int32)
    encoding = Encoding("gzip", 1, axis_order=(1, 0))
    stream, band = opened(Encoding("gzip", 1), (1, 0), array), np.empty(1 << 16, np.uint8)
    tracemalloc.start()
    for _ in range(array.nbytes // band.nbytes):
        stream.readinto(band.data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.nbytes <= peak <= decoder_bytes(encoding, array.nbytes)
    assert decoder_bytes(encoding, array.nbytes) < array.nbytes + (2 << 20)
    assert not is_seekable(Encoding(axis_order=(1, 0)))
