"""``--json``: one object on one line of stdout for each command, with stable keys.

``docs/reference/json-output.md`` lists them. Sizes are bytes, times seconds; unknown values are null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

if TYPE_CHECKING:
    from reshard import (
        BucketReport,
        CheckpointInfo,
        ConversionPlan,
        ConversionReport,
        DeviceMesh,
        DiffReport,
        Fingerprint,
        Grid,
        LayoutPreview,
        Leftovers,
        MultiConversionPlan,
        PartReport,
        PlannedTensor,
        RequestPlan,
        RequestReport,
        Requests,
        TensorInfo,
        TensorLayout,
        TensorPreview,
        TimePlan,
        TimeReport,
        Verification,
    )
    from reshard.planning.move import Plan

Document = dict[str, Any]


def print_json(document: Document) -> None:
    """Writes one line to stdout; only ASCII, so that no name can steer a terminal."""
    sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: numbers that are not finite become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value


def inspection(info: CheckpointInfo) -> Document:
    """The object of ``inspect``."""
    return {
        "command": "inspect",
        "uri": info.uri,
        "format": info.format,
        "style": info.style,
        "nbytes": info.nbytes,
        "tensors": list(map(_tensor, info.tensors.values())),
        "items": [
            {"name": i.name, "directory": i.directory, "is_tree": i.is_tree, "handler": i.handler}
            for i in info.items
        ],
        "meshes": [
            {**_mesh(m), "axis_types": m.axis_types, "device_ids": m.device_ids}
            for m in info.meshes
        ],
        "leaves": [{"name": x.name, "item": x.item, "is_tensor": x.tensor} for x in info.leaves],
        "warnings": info.warnings,
    }


def _tensor(tensor: TensorInfo) -> Document:
    spec, encoding = tensor.spec, tensor.encoding
    return {
        "name": spec.name,
        "item": tensor.item,
        "shape": spec.shape,
        "dtype": spec.dtype,
        "nbytes": spec.nbytes,
        "chunk_shape": spec.chunk_shape,
        "chunks": spec.storage.count,
        "compressor": encoding.compressor,
        "level": encoding.level,
        "checksum": encoding.checksum,
        "mesh": _mesh_of(spec.layout),
        "axes": _axes_of(spec.layout),
        "digest": tensor.digest,
        "is_key": tensor.is_key,
    }


def _mesh(mesh: DeviceMesh) -> Document:
    return {"axes": mesh.axis_names, "shape": mesh.shape}


def _mesh_of(layout: TensorLayout | None) -> Document | None:
    return _mesh(layout.device_mesh) if layout and layout.device_mesh else None


def _axes_of(layout: TensorLayout | None) -> object:
    return None if layout is None else layout.axes


def conversion_plan(
    planned: ConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan``; ``link`` is what ``RequestPlan.seconds`` takes. ``time`` is there only if it was asked for."""
    return {
        "command": "plan",
        "source": planned.source,
        "target": planned.target,
        "tensors": [_planned(t, with_shares) for t in planned.tensors],
        "totals": _totals(planned.plan),
        "carried": planned.carried,
        "dropped": planned.dropped,
        "warnings": planned.warnings,
        "missing_chunks": dict(planned.missing_chunks),
        "free_bytes": planned.free_bytes,
        "requests": _planned_requests(planned.requests, **link),
        **({} if time is None else {"time": _time(time)}),
    }


def _time(plan: TimePlan) -> Document:
    return {**to_builtins(plan), "seconds": plan.seconds, "bottleneck": plan.bottleneck}


def _time_report(report: TimeReport) -> Document:
    return {"planned": _time(report.planned), "actual_s": report.actual_s}


def _planned_requests(plan: RequestPlan | None, **given: float) -> Document | None:
    """The requests to buckets, and the time that they take on a link."""
    if plan is None:
        return None
    link = {"latency_s": plan.LATENCY_S, "bytes_per_s": plan.BYTES_PER_S, **given}
    return {**_requests(plan.requests(**link)), **link, "seconds": plan.seconds(**link)}


def _requests(found: Requests) -> Document:
    return {**to_builtins(found), "total": found.total}


def _request_report(report: RequestReport | None) -> Document | None:
    """The requests to buckets that were planned, and those that were made."""
    if report is None:
        return None
    return {"planned": _requests(report.planned), "actual": _requests(report.actual)}


def _planned(tensor: PlannedTensor, with_shares: bool) -> Document:
    source, target, price = tensor.source, tensor.target, tensor.move.price
    return {
        "source": source.name,
        "target": target.name,
        "shape": target.shape,
        "source_dtype": source.dtype,
        "target_dtype": target.dtype,
        **_shards("source", tensor.source_shards),
        **_shards("target", tensor.target_shards),
        "source_chunk_shape": source.chunk_shape,
        "target_chunk_shape": target.chunk_shape,
        "source_chunks": source.storage.count,
        "target_chunks": target.storage.count,
        "source_mesh": _mesh_of(source.layout),
        "target_mesh": _mesh_of(target.layout),
        "source_axes": _axes_of(source.layout),
        "target_axes": _axes_of(target.layout),
        "partition": tensor.partition,
        "strategy": tensor.move.strategy,
        "tasks": price.tasks,
        "source_bytes": price.source_bytes,
        "decoded_bytes": price.decoded_bytes,
        "written_bytes": price.written_bytes,
        "amplification": price.amplification,
        "task_bytes": price.task_bytes,
        **(_shares(tensor) if with_shares else {}),
    }


def _shards(side: str, shards: Grid | None) -> Document:
    """Number of shards per dimension, and the shape of the largest."""
    return {
        f"{side}_shards": shards and shards.parts,
        f"{side}_shard_shape": shards and shards.largest,
    }


def _shares(tensor: PlannedTensor) -> Document:
    from reshard.planning.shares import shares

    return {"shares": [(s.target, s.source, s.share) for s in shares(tensor.move)]}


def _totals(plan: Plan) -> Document:
    return {
        "tensors": len(plan.moves),
        "tasks": plan.tasks,
        "source_bytes": plan.source_bytes,
        "decoded_bytes": plan.decoded_bytes,
        "written_bytes": plan.written_bytes,
        "amplification": plan.amplification,
        "peak_bytes": plan.peak_bytes,
        "max_memory": plan.allowed_bytes or plan.max_memory,
        "metadata_bytes": plan.metadata_bytes,
        "workers": plan.workers,
    }


def conversion_report(report: ConversionReport) -> Document:
    """The object of ``convert``."""
    return {
        "command": "convert",
        "source": report.source,
        "target": report.target,
        "tensors": [to_builtins(t) for t in report.tensors],
        "nbytes": sum(t.nbytes for t in report.tensors),
        "read_bytes": report.read_bytes,
        "moved_bytes": report.moved_bytes,
        "written_bytes": report.written_bytes,
        "seconds": report.seconds,
        "warnings": report.warnings,
        "missing_chunks": dict(report.missing_chunks),
        "resumed_bytes": report.resumed_bytes,
        "already_done": report.already_done,
        "requests": _request_report(report.requests),
        **({} if report.time is None else {"time": _time_report(report.time)}),
    }


def conversion_reports(
    source: str,
    reports: Sequence[Document],
    read_bytes: int | None,
    requests: RequestReport | None = None,
    time: TimeReport | None = None,
) -> Document:
    """The object of ``convert`` with ``--target``; ``read_bytes`` is null if an older server converted."""
    return {
        "command": "convert",
        "source": source,
        "reports": reports,
        "read_bytes": read_bytes,
        "requests": _request_report(requests),
        **({} if time is None else {"time": _time_report(time)}),
    }


def conversion_plans(
    planned: MultiConversionPlan, with_shares: bool, time: TimePlan | None = None, **link: float
) -> Document:
    """The object of ``plan`` with ``--target``."""
    joint = planned.total
    return {
        "command": "plan",
        "source": planned.source,
        "plans": [conversion_plan(plan, with_shares, None, **link) for plan in planned.plans],
        "reads": len(joint.reads),
        "tasks": joint.tasks,
        "source_bytes": joint.source_bytes,
        "decoded_bytes": joint.decoded_bytes,
        "repeated_bytes": joint.repeated_bytes,
        "written_bytes": joint.written_bytes,
        "amplification": joint.amplification,
        "peak_bytes": joint.peak_bytes,
        "requests": _planned_requests(planned.requests, **link),
        **({} if time is None else {"time": _time(time)}),
    }


def verification(found: Verification) -> Document:
    """The object of ``verify``; ``equal`` is true if everything was compared and agrees."""
    from reshard.verification.compare import AGREEING

    agree = all(t.status in AGREEING for t in found.tensors)
    return {
        "command": "verify",
        "a": found.a,
        "b": found.b,
        "equal": agree and not found.differences,
        "differences": found.differences,
        "damage": found.damage,
        "warnings": found.warnings,
        "rules": None
        if found.rules is None
        else {"from": found.rules_from, **to_builtins(found.rules)},
        "dropped": found.dropped,
        "missing_chunks": {side: dict(found.missing_chunks.get(side, {})) for side in ("A", "B")},
        "files": [to_builtins(f) for f in found.files],
        "tensors": [to_builtins(t) for t in found.tensors],
    }


def diff_document(found: DiffReport) -> Document:
    """The object of ``diff``; ``equal`` is true if nothing differs."""
    return {
        "command": "diff",
        "a": found.a,
        "b": found.b,
        "equal": not found.differences,
        "differences": found.differences,
        "tensors": [to_builtins(t) for t in found.tensors.values()],
        "leaves": [to_builtins(x) for x in found.leaves.values()],
        "seconds": found.seconds,
        "warnings": found.warnings,
    }


def doctor(found: BucketReport) -> Document:
    """The object of ``doctor``."""
    return {"command": "doctor", **to_builtins(found), "is_fine": found.is_fine}


def part_report(report: PartReport) -> Document:
    """The object of ``convert --part``."""
    return {"command": "convert", **to_builtins(report)}


def clean(found: Leftovers) -> Document:
    """The object of ``clean``."""
    return {"command": "clean", **to_builtins(found)}


def fingerprint(found: Fingerprint) -> Document:
    """The object of ``fingerprint``."""
    return {
        "command": "fingerprint",
        "uri": found.uri,
        "tensors": [{"name": n, "digest": d} for n, d in found.tensors.items()],
        "files": found.files,
        "nbytes": found.nbytes,
        "written": found.written,
        "seconds": found.seconds,
        "warnings": found.warnings,
    }


def starter_document(source: str, text: str) -> Document:
    """The object of ``layout --starter``."""
    return {"command": "layout", "source": source, "starter": text}


def layout_document(file: str | None, source: str, preview: LayoutPreview) -> Document:
    """The object of ``layout``."""
    return {
        "command": "layout",
        "file": file,
        "source": source,
        "tensors": list(map(_tensor_preview, preview.tensors)),
        "device_bytes": sum(t.shard_bytes for t in preview.tensors if not t.is_partitioned),
        "partitioned_bytes": sum(t.target_bytes for t in preview.tensors if t.is_partitioned),
        "warnings": preview.warnings,
    }


def _tensor_preview(tensor: TensorPreview) -> Document:
    source, target = tensor.source, tensor.target
    return {
        "source": source.name,
        "target": target.name,
        "shape": target.shape,
        "dtype": target.dtype,
        "source_mesh": _mesh_of(source.layout),
        "source_axes": _axes_of(source.layout),
        "source_shards": source.slices.parts if source.layout else None,
        "target_mesh": _mesh_of(target.layout),
        "target_axes": _axes_of(target.layout),
        "target_shards": tensor.slices.parts,
        "target_shard_shape": tensor.slices.largest,
        "target_shard_bytes": tensor.shard_bytes,
        "partition": tensor.partition,
    }
