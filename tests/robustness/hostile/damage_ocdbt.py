"""Damage to OCDBT manifests and nodes that passes their checksums.

A manifest or node is: 4 bytes magic, its length as u64le, a version varint, a compression varint (1 =
zstd), the body, and the CRC32C of all of it
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html#storage-format).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import zstandard
from awscrt.checksums import crc32c

NODE, MANIFEST = bytes.fromhex("0cdb20de"), bytes.fromhex("0cdb3a2a")


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def opened(data: bytes) -> bytes:
    """The body of a manifest or node."""
    body = data[14:-4]
    return zstandard.ZstdDecompressor().decompressobj().decompress(body) if data[13] else body


def closed(magic: bytes, body: bytes, *, compress: bool) -> bytes:
    """The manifest or node with that body, checksum and all."""
    inner = zstandard.ZstdCompressor().compress(body) if compress else body
    size = len(magic) + 8 + 2 + len(inner) + 4
    head = magic + size.to_bytes(8, "little") + b"\0" + bytes([compress]) + inner
    return head + crc32c(head).to_bytes(4, "little")


def replace_root(
    database: Path, change: Callable[[bytes], bytes], *, compress: bool = True
) -> None:
    """The root node's body becomes ``change(body)``, and the manifest says its new length."""
    manifest = opened((database / "manifest.ocdbt").read_bytes())
    for file in sorted(p for p in (database / "d").iterdir() if p.is_file()):
        data = file.read_bytes()
        old = varint(len(data))
        if (
            data.startswith(NODE)
            and int.from_bytes(data[4:12], "little") == len(data)
            and old in manifest
        ):
            new = closed(NODE, change(opened(data)), compress=compress)
            file.write_bytes(new)
            body = manifest.replace(old, varint(len(new)))
            (database / "manifest.ocdbt").write_bytes(closed(MANIFEST, body, compress=compress))
            return


def damage_database(rng: random.Random, database: Path) -> str:
    """Changes a manifest or the root node of a database."""

    def change(body: bytes) -> bytes:
        return damage_bytes(rng, body, rng.choice((1, 1, 2, 8)))

    manifest = database / "manifest.ocdbt"
    if rng.random() < 0.3 or not (database / "d").is_dir():
        body = change(opened(manifest.read_bytes()))
        manifest.write_bytes(closed(MANIFEST, body, compress=rng.random() < 0.5))
        return "manifest"
    replace_root(database, change, compress=rng.random() < 0.5)
    return "node"


def leaf_node(keys: int, suffix: int, *, prefix: int = 0) -> bytes:
    """The body of a leaf of that many keys without values, which compresses to next to nothing."""
    head = b"\0" + varint(0) + varint(keys)
    return b"".join((
        head, varint(prefix) * (keys - 1), varint(suffix) * keys, b"k" * (suffix * keys), varint(0) * keys, bytes(keys),
    ))  # fmt: skip


def damage_bytes(rng: random.Random, data: bytes, times: int) -> bytes:
    """Bytes flipped, overwritten, inserted, cut out or repeated."""
    out = bytearray(data)
    for _ in range(times):
        at = rng.randrange(len(out) + 1)
        how = rng.randrange(7)
        if how == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at : at + 1] = rng.choice(
                (b"\0", b"\xff", b"\x80", b"\x7f", varint(2**63), varint(2**32))
            )
        elif how == 2:
            del out[at : at + rng.choice((1, 2, 16, 1000))]
        elif how == 3:
            out[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
        elif how == 4:
            out[at:at] = out[at : at + 20]
        elif how == 5:
            del out[at:]
        else:
            out[at : at + 8] = rng.choice((2**64 - 1, 2**63, 2**62, 2**32, 0)).to_bytes(8, "little")
    return bytes(out)
