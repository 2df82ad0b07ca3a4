"""Nodes of OCDBT databases against TensorStore's own dump, and damaged ones."""

from __future__ import annotations

import os
from urllib.parse import unquote

import numpy as np
import pytest
import tensorstore as ts

from reshard.errors import CorruptError, ReshardError
from reshard.formats.contents import Extent
from reshard.formats.ocdbt.index import OcdbtIndex
from reshard.formats.ocdbt.node import Node
from reshard.storage.location import locate
from tests.fresh_process import run_fresh


def database(directory, values, **config):
    base = {"driver": "file", "path": f"{directory}/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base, "config": config}).result()
    with ts.Transaction() as transaction:
        for key, value in values.items():
            store.with_transaction(transaction).write(key, value)
    return ts.KvStore.open(base).result()


def parse_location(directory, text):
    """File, offset and length of ``kind:base:relative:offset:length``, as TensorStore tells a place."""
    _, base, relative, offset, length = text.split(":")
    return f"{directory}/{unquote(base + relative)}", int(offset), int(length)


def root_of(base):
    return ts.ocdbt.dump(base).result()["versions"][-1]["root"]["location"]


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return {f"layer_{i:05d}/c/{i % 3}": rng.bytes(i % 200) for i in range(5000)}


@pytest.mark.parametrize("compression", [{"id": "zstd", "level": 3}, None])
@pytest.mark.parametrize("node_bytes", [1000, 100_000_000])
def test_every_node_says_what_tensorstore_reads_in_it(tmp_path, values, compression, node_bytes):
    sizes = {"max_inline_value_bytes": 100, "max_decoded_node_bytes": node_bytes}
    base = database(tmp_path, values, compression=compression, **sizes)
    waiting, leaves = [root_of(base)], 0
    while waiting:
        location = waiting.pop()
        dumped = ts.ocdbt.dump(base, node=location).result()
        node = Node(Extent(*parse_location(tmp_path, location)), "", location)
        assert node.height == dumped["height"]
        for entry, expected in zip(node.entries(), dumped["entries"], strict=True):
            place = expected.get("indirect_value") or expected.get("location")
            if place is None:
                assert (entry.key, entry.inline) == (expected["key"], expected["inline_value"])
                continue
            assert entry.file is not None
            found = f"{tmp_path}/{entry.file.path}", entry.offset, entry.length
            assert found == parse_location(tmp_path, place)
            if node.height:
                waiting.append(place)
                assert entry.key == expected.get("subtree_common_prefix", b"")
            else:
                assert entry.key == expected["key"]
        leaves += node.height == 0
    assert leaves > 1 if node_bytes == 1000 else leaves == 1


def test_no_flipped_bit_of_a_node_passes(tmp_path, values):
    base = database(tmp_path, values, compression=None, max_inline_value_bytes=100)
    path, offset, length = parse_location(tmp_path, root_of(base))
    whole = open(path, "rb").read()  # noqa: PTH123, SIM115  paths are text here
    rng = np.random.default_rng(1)
    for place in rng.integers(offset, offset + length, 120):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        with open(path, "wb") as file:  # noqa: PTH123  paths are text here
            file.write(damaged)
        with pytest.raises(ReshardError):
            OcdbtIndex([locate(tmp_path).view()])


def test_nodes_that_are_none(tmp_path):
    file = tmp_path / "node"
    for data, text in (
        (b"", "is not a node of a B-tree"),
        (b"x" * 40, "is not a node of a B-tree"),
        (bytes.fromhex("0cdb20de") + b"\1" * 40, "says that it has"),
        (bytes.fromhex("0cdb20de") + b"\1" * 13, "is not a node of a B-tree"),
    ):
        file.write_bytes(data)
        with pytest.raises(CorruptError, match=text):
            Node(Extent(str(file), 0, len(data)), "", "it")


def test_an_index_of_many_keys_takes_little_memory(tmp_path):
    """A dump of this node takes 130 MiB as dictionaries."""
    values = {f"params.layer_{i:06d}.kernel/0.{i % 7}": os.urandom(8) for i in range(100_000)}
    database(tmp_path, values, max_decoded_node_bytes=100_000_000, max_inline_value_bytes=0)
    outcome = run_fresh(
        """
        import json, resource, sys
        import numpy, tensorstore, zstandard, awscrt.checksums
        from reshard.formats.ocdbt.index import OcdbtIndex
        from reshard.storage.location import locate
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        index = OcdbtIndex([locate(sys.argv[1]).view()])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps([len(index), (after - before) << 10, index.metadata_bytes]))
        """,
        str(tmp_path),
    )
    count, grown, planned = outcome.printed
    assert count == 100_000
    assert grown <= planned + (24 << 20)
    assert planned <= 8 << 20
