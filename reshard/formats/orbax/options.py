"""The options of an Orbax target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from reshard.formats.chunking import SPLIT_ABOVE_BYTES, object_chunk_bytes
from reshard.formats.contents import Style
from reshard.formats.encoding import codec_name, parse_compression
from reshard.geometry.sizes import exact_bytes
from reshard.options import Option

if TYPE_CHECKING:
    from reshard.formats.encoding import Encoding


def _compression_text(encoding: Encoding | None) -> str:
    return "keep" if encoding is None else codec_name(encoding) + encoding.spec


OPTIONS: Mapping[str, Option] = {
    "compression": Option(
        kind="text",
        read=parse_compression,
        show=_compression_text,
        metavar="CODEC",
        help=(
            r"none, zstd\[:level], gzip\[:level], blosc, or keep (each tensor's own). none is the fastest to write and to "
            r"restore."
        ),
        examples=("zstd:3",),
        max_length=32,
        label="Compression",
        hint="none, zstd[:level], gzip[:level], blosc or keep.",
        offered=("none", "zstd:3", "zstd:9", "gzip:6", "blosc", "keep"),
    ),
    "chunk_bytes": Option(
        kind="size",
        example="256MiB",
        default_bytes=SPLIT_ABOVE_BYTES,
        show=exact_bytes,
        in_bucket=object_chunk_bytes,
        metavar="SIZE",
        help=(
            "Store a shard in several chunks if it is larger than this. Default: 256MiB. Shards below 1MiB share a chunk, "
            "and any other is one chunk; the layout stays as asked."
        ),
        label="Chunk size",
        hint="Larger chunks are split. Such as 64MiB.",
    ),
    "ocdbt": Option(
        kind="flag",
        show=str,
        help="Pack the chunks into one OCDBT database instead of plain files.",
        label="Pack the target into one OCDBT database",
    ),
    "style": Option(
        kind="choice",
        choices=(None, *get_args(Style)),
        show=str,
        help="Orbax's form of checkpoint. Default: the source's.",
        label="Orbax checkpoint style",
        hint="Which Orbax API writes such files.",
        labels=("as the source", "v0", "v1"),
    ),
}
