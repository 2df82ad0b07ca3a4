"""Tensors and shards that are read as bytes: whole, a slice, a range, cast."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import reshard
from tests.recorded.sources import COLUMNS, ROWS
from tests.recorded.ways import LIMITS, Recorded, Use, World, observed

Stream = reshard.TensorStream | reshard.ShardStream
_MEMORY = LIMITS["max_memory"]


def _streamed(
    source: str,
    name: str,
    box: str | None = None,
    dtype: str | None = None,
    part: tuple[int, int | None] = (0, None),
    **options: Any,
) -> Use:
    """Bytes of a box of a tensor."""
    return _use(source, lambda opened, **how: opened.stream(name, box, dtype, **how), part, options)


def _shard(
    source: str, shard: int, part: tuple[int, int | None] = (0, None), **options: Any
) -> Use:
    """Bytes of a shard of a layout."""
    return _use(source, lambda opened, **how: opened.stream_shard(shard, **how), part, options)


def _use(
    source: str,
    stream: Callable[..., Stream],
    part: tuple[int, int | None],
    options: Mapping[str, Any],
) -> Use:
    how = {"max_memory": _MEMORY, **options}

    def carried_out(world: World) -> Recorded:
        src = world.source(source)
        return observed(
            world,
            lambda: _taken(stream(reshard.open_checkpoint(src), **how), part),
            lambda found: found,
        )

    return carried_out


def _taken(stream: Stream, part: tuple[int, int | None]) -> Recorded:
    data = b"".join(stream.read(*part))
    found: Recorded = {
        "bytes": len(data),
        "of": stream.nbytes,
        "memory": stream.memory_bytes,
        "missing chunks": stream.missing_chunks,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    if isinstance(stream, reshard.ShardStream):
        return {**found, "names": list(stream.names), "header": stream.header[8:].decode()}
    return {**found, "dtype": stream.dtype, "digest": stream.digest}


_FORMS = ("raw", "zarr3", "ocdbt2", "blosc", "chunks", "one.safetensors", "dcp")

STREAMS: Mapping[str, Use] = {
    "stream": _streamed("zarr2", "rows", "100:300,7:900", "bfloat16"),
    **{f"stream: whole, from {source}": _streamed(source, "cols") for source in _FORMS},
    "stream: with a digest": _streamed("saved", "rows"),
    "stream: a slice": _streamed("ranks", "rows", "100:300,7:900"),
    "stream: a column": _streamed("raw", "rows", ":,3:4"),
    "stream: a cast that saturates": _streamed("hf", "both", None, "float8_e4m3fn:saturate"),
    "stream: a range": _streamed("zstd", "cols", None, None, (100_001, 700_003)),
    "stream: a range of a slice": _streamed("raw", "both", "5:400,9:100", "float16", (77, 9999)),
    "stream: little memory": _streamed("gzip", "rows", max_memory="5MiB"),
    "stream: missing chunks": _streamed("incomplete", "rows", missing_chunks="warn"),
    "stream: from S3": _streamed("s3:zarr2", "rows", "0:64,:"),
    "stream: a shard": _shard("raw", 2, layout=COLUMNS),
    "stream: a shard of a mesh": _shard("zarr3", 7, mesh="data=4,model=2,x=1"),
    "stream: a shard with changes": _shard(
        "zstd", 1, layout=ROWS, drop=["cols"], rename=[["rows", "r"]], cast=[["float", "bfloat16"]]
    ),
    "stream: a range of a shard": _shard("ocdbt3", 3, (50, 300_000), layout=ROWS),
    "stream: refused, little memory": _streamed("gzip", "rows", max_memory="1KiB"),
    "stream: refused, damage": _streamed("damaged", "rows"),
    "stream: refused, damage of zstd": _streamed("broken", "rows", "0:64,:"),
    "stream: refused, no such tensor": _streamed("raw", "row"),
    "stream: refused, a box": _streamed("raw", "rows", "0:513,:"),
    "stream: refused, no such shard": _shard("raw", 4, layout=ROWS),
}  # fmt: skip
