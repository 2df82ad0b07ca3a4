"""Manifests of OCDBT databases against TensorStore's own dump, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
import tensorstore as ts

from reshard.errors import CorruptError, FormatError
from reshard.formats.ocdbt.index import OcdbtIndex
from reshard.formats.ocdbt.manifest import Root, read_root
from reshard.storage.location import locate
from tests.campaigns import every
from tests.fresh_process import run_fresh
from tests.robustness.hostile.damage_ocdbt import MANIFEST, closed, opened, varint


def database(directory: Path, versions: int = 1, **config):
    base = {"driver": "file", "path": f"{directory}/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base, "config": config}).result()
    for version in range(versions):
        store.write(f"key {version}".encode(), b"v" * 2000).result()
    return store


def dumped(directory: Path) -> Root | None:
    """The newest root, as TensorStore tells it."""
    base = ts.KvStore.open({"driver": "file", "path": f"{directory}/"}).result()
    root = ts.ocdbt.dump(base).result()["versions"][-1]["root"]
    if "location" not in root:
        return None
    _, folder, name, offset, length = root["location"].split(":")
    return Root(
        unquote(folder),
        unquote(folder + name),
        int(offset),
        int(length),
        root["statistics"]["num_keys"],
    )


CONFIGS = {
    "as it comes": {},
    "uncompressed": {"compression": None},
    "a level": {"compression": {"id": "zstd", "level": 9}},
    "small nodes": {"max_decoded_node_bytes": 200, "max_inline_value_bytes": 0},
    "arity": {"version_tree_arity_log2": 2},
    "numbered": {"manifest_kind": "numbered"},
}


@pytest.mark.parametrize("versions", [1, 5, 40])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_root_is_that_of_tensorstore(tmp_path, config, versions):
    database(tmp_path, versions, **config)
    assert read_root(locate(tmp_path)) == dumped(tmp_path)
    assert len(OcdbtIndex([locate(tmp_path).view()])) == versions


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_a_database_without_keys_has_no_root(tmp_path, kind):
    database(tmp_path, 3, manifest_kind=kind).delete_range(ts.KvStore.KeyRange()).result()
    assert dumped(tmp_path) is None
    assert read_root(locate(tmp_path)) is None


def test_no_flipped_bit_passes(tmp_path):
    database(tmp_path, 5)
    file = tmp_path / "manifest.ocdbt"
    whole = file.read_bytes()
    for bit in range(0, 8 * len(whole), every(3)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises((CorruptError, FormatError)):
            read_root(locate(tmp_path))


def test_a_manifest_that_ends_early(tmp_path):
    database(tmp_path)
    file = tmp_path / "manifest.ocdbt"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(CorruptError, match=r"manifest\.ocdbt"):
            read_root(locate(tmp_path))


def config(kind: int = 0) -> bytes:
    return bytes(16) + varint(kind) + varint(1024) + varint(1 << 20) + b"\4" + varint(0)


def one_file(path: bytes) -> bytes:
    return varint(1) + varint(len(path)) + varint(0) + path


def versions(count: int, file: int, offset: int, length: int, keys: int = 1) -> bytes:
    numbers = (1, 0, file, offset, length, keys, 0, 0)
    return varint(count) + b"".join(varint(n) * count for n in numbers) + bytes(8 * count) + b"\0"


FILE = one_file(b"d/a")
BAD = {
    "kind": (config(2) + FILE + versions(1, 0, 0, 5), CorruptError, r"its kind is 2 \(0 and 1 are known\)"),
    "none": (config() + FILE + varint(0) + b"\0", FormatError, "names no version of its database; expected at least one"),
    "many": (config() + FILE + varint(1 << 17), CorruptError, "it has 131072 versions"),
    "no file": (config() + FILE + versions(1, 1, 0, 5), CorruptError, "its newest version has no place"),
    "half missing": (config() + FILE + versions(1, 0, (1 << 64) - 1, 5), CorruptError, "its newest version has no place"),
    "too big": (config() + FILE + versions(1, 0, 0, 5, 1 << 63), CorruptError, "a number of more than 63 bits"),
    "wider": (config() + FILE + versions(1, 0, 1 << 64, 5), CorruptError, "a number of more than 64 bits"),
    "short": (config(), CorruptError, "it ends too early"),
}  # fmt: skip


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("body", "error", "text"), BAD.values(), ids=BAD)
def test_manifests_that_contradict_themselves(tmp_path, body, error, text, compress):
    (tmp_path / "manifest.ocdbt").write_bytes(closed(MANIFEST, body, compress=compress))
    with pytest.raises(error, match=text):
        read_root(locate(tmp_path))


@pytest.mark.parametrize(
    "path",
    [b"../x", b"/etc/passwd", b"a//b", b"a\0b", b"", b"./a", b"d/../../x"],
)
def test_roots_that_lead_elsewhere(tmp_path, path):
    body = config() + one_file(path) + versions(1, 0, 0, 5)
    (tmp_path / "manifest.ocdbt").write_bytes(closed(MANIFEST, body, compress=True))
    with pytest.raises(CorruptError, match="should name a data file below the database's folder"):
        OcdbtIndex([locate(tmp_path).view()])


@pytest.mark.parametrize(("offset", "length"), [(1 << 61, 1 << 62), (0, 1 << 40), (1 << 40, 5)])
def test_roots_beyond_their_file(tmp_path, offset, length):
    body = config() + FILE + versions(1, 0, offset, length)
    (tmp_path / "manifest.ocdbt").write_bytes(closed(MANIFEST, body, compress=True))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"12345")
    with pytest.raises(CorruptError, match="d/a"):
        OcdbtIndex([locate(tmp_path).view()])


def test_what_the_manifest_holds_is_what_the_tests_make(tmp_path):
    """The damaged manifests differ from a real one in nothing but the damage."""
    database(
        tmp_path, max_decoded_node_bytes=1 << 20, max_inline_value_bytes=1024, compression=None
    )
    body = opened((tmp_path / "manifest.ocdbt").read_bytes())
    assert body[16 : len(config())] == config()[16:]


def test_tensorstore_is_not_imported_for_it(tmp_path):
    database(tmp_path, 3)
    outcome = run_fresh(
        """
        import json, sys
        from reshard.formats.ocdbt.index import OcdbtIndex
        from reshard.storage.location import locate
        index = OcdbtIndex([locate(sys.argv[1]).view()])
        print(json.dumps([len(index), "tensorstore" in sys.modules]))
        """,
        str(tmp_path),
    )
    assert outcome.printed == [3, False]
