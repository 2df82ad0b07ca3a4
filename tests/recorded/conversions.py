"""The conversions that are recorded, by name: form of the source, codec, strategy, store, and how they are carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.recorded.sources import COLUMNS, ROWS
from tests.recorded.ways import Use, in_parts, in_processes, once, several, stopped

FLOATS: dict[str, Any] = {"cast": [["float", "bfloat16"]]}
SAFETENSORS: dict[str, Any] = {"to": "safetensors"}

STRATEGIES: Mapping[str, Use] = {
    "scatter": once("raw", "scatter", layout=COLUMNS, chunk_bytes=16384),
    "weave": once("raw", "weave", layout=ROWS),
    "block": once("raw", "block", compression="zstd", chunk_bytes=16384),
    "copy": once("zstd", "copy", compression="keep"),
    "whole": once("chunks", "whole", chunk_bytes=8192),
    "cast": once("zstd", "cast", layout=COLUMNS, chunk_bytes=16384, **FLOATS),
    "read back": once("raw", "readback", layout=ROWS, check="readback"),
    "processes": in_processes("zarr2", "processes", layout=COLUMNS, chunk_bytes=65536),
}
"""Each of the ways in which chunks fill others."""

SOURCES: Mapping[str, Use] = {
    f"from {source}": once(source, f"from-{source.replace('/', '-')}", layout=ROWS, to="orbax")
    for source in (
        "raw3", "zarr2", "zarr3", "ocdbt2", "ocdbt3", "saved", "gzip", "blosc", "one.safetensors", "hf",
        "ranks", "dcp",
    )
} | {
    "from state": once("state", "from-state"),
    "from state of v1": once("state1", "from-state1"),
    "from unmerged databases": once("unmerged", "from-unmerged"),
    "from a step of a run": once("run", "from-run", step=12),
    "from an item": once("run/12", "from-item", item="state"),
    "from msgpack": once("old/o041/flaxargs", "from-msgpack"),
    "from msgpack of Flax": once("old/flax_o048/checkpoint_100", "from-flax"),
    "from every dtype": once("dtypes", "from-dtypes", compression="zstd"),
    "from missing chunks": once("incomplete", "from-incomplete", missing_chunks="allow"),
}  # fmt: skip
"""Every form that is read."""

TARGETS: Mapping[str, Use] = {
    "to zstd": once("zarr2", "to-zstd", compression="zstd:9", chunk_bytes="1MiB"),
    "to gzip": once("zarr2", "to-gzip", compression="gzip:3", layout=COLUMNS),
    "to blosc": once("zarr2", "to-blosc", compression="blosc"),
    "to the source's codec": once("zarr3", "to-keep", compression="keep", layout=ROWS),
    "to a database": once("raw", "to-ocdbt", ocdbt=True, layout=ROWS, chunk_bytes=65536),
    "to a database of zstd": once("ocdbt2", "to-ocdbt-zstd", ocdbt=True, compression="keep"),
    "to style v1": once("state", "to-v1", style="v1"),
    "to one file": once("zarr2", "to.safetensors", layout=ROWS),
    "to shards": once("zarr2", "to-shards", **SAFETENSORS, file_bytes="2MiB"),
    "to named files": once(
        "hf", "to-named", **SAFETENSORS, file_names="part-{number}-of-{count}.safetensors"
    ),
    "to rank files": once("raw", "to-ranks", **SAFETENSORS, files="ranks", layout=ROWS),
    "to DCP": once("zarr2", "to-dcp", **SAFETENSORS, files="dcp", layout=COLUMNS),
    "to files with others": once("hf", "to-carried", carry=True, file_bytes="4MiB"),
}
"""Every form that is written."""

CHANGES: Mapping[str, Use] = {
    "select and drop": once("state", "selected", select=["^params/", "^opt"], drop=["bias"]),
    "rename": once("state", "renamed", rename=[["^params/dense", "model/first"]]),
    "saturating cast": once("raw", "saturated", cast=[["rows", "float8_e4m3fn:saturate"]]),
    "casts by dtype": once("state", "casts", cast=[["float", "float16"], ["int8", "int32"]]),
    "mesh": once("raw", "meshed", mesh="data=2,model=2", missing_axes="replicate"),
    "all changes to safetensors": once(
        "state", "changed", **SAFETENSORS, **FLOATS, select=["^params/"], rename=[["^params/", ""]]
    ),
}

BUCKETS: Mapping[str, Use] = {
    "to S3": once("raw", "s3:raw-out", layout=COLUMNS, chunk_bytes=65536),
    "from S3": once("s3:zarr2", "from-s3", layout=ROWS),
    "within GCS": once("gs:zstd", "gs:copied", compression="keep"),
    "from S3 to rank files in GCS": once(
        "s3:raw", "gs:ranks-out", **SAFETENSORS, files="ranks", layout=ROWS
    ),
    "from a database in GCS": once("gs:old/o048/ocdbt", "from-gs-ocdbt", compression="zstd"),
    "to zstd in GCS": once("zarr2", "gs:zstd-out", compression="zstd", check="readback"),
    "to shards in S3": once("raw", "s3:shards-out", **SAFETENSORS, file_bytes="2MiB"),
}

STOPPED: Mapping[str, Use] = {
    f"stopped: {name}": stopped(source, f"stopped-{number}", after, **options)
    for number, (name, source, after, options) in enumerate(
        [
            ("scatter", "raw", 10, {"layout": COLUMNS, "chunk_bytes": 16384}),
            ("weave", "raw", 6, {"layout": ROWS}),
            ("block", "raw", 4, {"compression": "zstd", "chunk_bytes": "512KiB"}),
            ("copy", "zstd", 20, {"compression": "keep"}),
            ("whole", "chunks", 150, {"chunk_bytes": 8192}),
            ("cast", "zstd", 10, {**FLOATS, "layout": COLUMNS, "chunk_bytes": 16384}),
            ("read back", "raw", 6, {"layout": COLUMNS, "check": "readback"}),
            ("database", "zarr2", 4, {"ocdbt": True, "chunk_bytes": "512KiB"}),
            ("shards", "zarr2", 4, {**SAFETENSORS, "file_bytes": "2MiB"}),
            ("rank files", "raw", 6, {**SAFETENSORS, "files": "ranks", "layout": ROWS}),
            ("DCP", "chunks", 4, {**SAFETENSORS, "files": "dcp", "layout": COLUMNS}),
        ]
    )
} | {
    "stopped: one file": stopped("zarr2", "stopped.safetensors", 6),
    "stopped: to S3": stopped("raw", "s3:stopped", 4, compression="zstd", chunk_bytes="512KiB"),
    "stopped: to shards in GCS": stopped("raw", "gs:stopped", 3, **SAFETENSORS, file_bytes="2MiB"),
}

PARTS: Mapping[str, Use] = {
    "parts": in_parts("raw", "parts", 3, layout=COLUMNS, chunk_bytes=16384),
    "parts: zstd": in_parts("raw", "parts-zstd", 2, compression="zstd", check="readback"),
    "parts: one file": in_parts("zarr2", "parts.safetensors", 3),
    "parts: rank files": in_parts(
        "ocdbt2", "parts-ranks", 2, **SAFETENSORS, files="ranks", layout=ROWS
    ),
    "parts: to S3": in_parts("zarr2", "s3:parts", 2, layout=COLUMNS),
}

SEVERAL: Mapping[str, Use] = {
    "several": several(
        "zarr3",
        {
            "several-columns": {"layout": COLUMNS},
            "several-zstd": {"layout": ROWS, "compression": "zstd"},
            "several.safetensors": FLOATS,
        },
    ),
    "several: stopped": several(
        "raw",
        {"two-rows": {"layout": ROWS}, "two-dcp": {**SAFETENSORS, "files": "dcp"}},
        after=8,
    ),
    "several: a disk and two clouds": several(
        "saved",
        {"three": {"compression": "keep"}, "s3:three": {"layout": ROWS}, "gs:three": SAFETENSORS},
    ),
}

WEIGHTS: dict[str, Any] = {"dequantize": "bfloat16"}

COMPUTED: Mapping[str, Use] = {
    "dequantised": once("codes", "weights", **WEIGHTS, carry=True),
    "dequantised to Orbax": once(
        "codes",
        "weights-zstd",
        to="orbax",
        compression="zstd",
        layout=COLUMNS,
        dequantize="float32",
    ),
    "dequantised in parts": in_parts("codes", "weights-parts", 2, **WEIGHTS, to="orbax"),
    "dequantised: stopped": stopped(
        "codes", "weights-stopped", 2, **WEIGHTS, to="orbax", chunk_bytes="256KiB"
    ),
    "codes kept": once("codes", "codes-kept", to="orbax"),
}
"""Sources of which tensors are computed."""

CONVERSIONS: Mapping[str, Use] = {
    **COMPUTED,
    **STRATEGIES, **SOURCES, **TARGETS, **CHANGES, **BUCKETS, **STOPPED, **PARTS, **SEVERAL,
}  # fmt: skip
