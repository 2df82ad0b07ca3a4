"""The index of an OCDBT database against TensorStore's own reads."""

from __future__ import annotations

import os

import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from reshard.formats.ocdbt.index import OcdbtIndex, find_databases
from reshard.formats.zarr.values import read_extent
from reshard.storage.location import locate

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def write(directory, values, **config):
    spec = {"driver": "ocdbt", "base": f"file://{directory}/", "config": config}
    store = ts.KvStore.open(spec).result()
    with ts.Transaction() as transaction:
        for key, value in values.items():
            store.with_transaction(transaction).write(key, value)
    return store


def read_all(index, keys):
    return {key: read_extent(index.find(key, "it"), "it") for key in keys}


def test_deep_tree_with_shared_prefixes_and_inline_values(tmp_path):
    values = {f"params.layer_{i:04d}.kernel/{i % 7}.0": os.urandom(i % 300) for i in range(4000)}
    write(tmp_path, values, max_inline_value_bytes=100, max_decoded_node_bytes=2000)
    index = OcdbtIndex([locate(tmp_path).view()])
    assert len(index) == len(values)
    assert read_all(index, values) == values
    assert index.find("params.layer_0000.kernel/0.1", "it") is None
    assert index.find("zzz", "it") is None


@given(st.dictionaries(KEYS, st.binary(max_size=40), min_size=1, max_size=40))
def test_any_keys(tmp_path_factory, values):
    directory = tmp_path_factory.mktemp("any")
    write(directory, values, max_inline_value_bytes=8, max_decoded_node_bytes=100)
    assert read_all(OcdbtIndex([locate(directory).view()]), values) == values


def test_latest_version_counts(tmp_path):
    store = write(tmp_path, {"a": b"old", "b": b"2"})
    store.write(b"a", b"newer").result()
    store.delete_range(ts.KvStore.KeyRange("b", "c")).result()
    index = OcdbtIndex([locate(tmp_path).view()])
    assert len(index) == 1
    assert read_all(index, ["a"]) == {"a": b"newer"}


def test_numbered_manifests_and_uncompressed_nodes(tmp_path):
    write(
        tmp_path,
        {"a": b"1" * 500},
        manifest_kind="numbered",
        max_inline_value_bytes=0,
        compression=None,
    )
    assert read_all(OcdbtIndex([locate(tmp_path).view()]), ["a"]) == {"a": b"1" * 500}


def test_empty_database(tmp_path):
    write(tmp_path, {"a": b""}).delete_range(ts.KvStore.KeyRange()).result()
    assert len(OcdbtIndex([locate(tmp_path).view()])) == 0
    assert OcdbtIndex([locate(tmp_path).view()]).find("a", "it") is None


def test_union_of_processes(tmp_path):
    for i, values in enumerate(({"m": b"same", "a": b"1"}, {"m": b"same", "b": b"2" * 2000})):
        write(tmp_path / f"ocdbt.process_{i}", values)
    databases = find_databases(locate(tmp_path))
    assert [d.name for d in databases] == ["ocdbt.process_0", "ocdbt.process_1"]
    assert read_all(OcdbtIndex(databases), ["a", "b", "m"]) == {
        "a": b"1",
        "b": b"2" * 2000,
        "m": b"same",
    }
