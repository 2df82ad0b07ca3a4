"""Checkpoints, plans and reports made by hand from the project's own records."""

from __future__ import annotations

from reshard.answers.shared import RecordedMesh
from reshard.conversion.plan import ConversionPlan, PlanTotals
from reshard.conversion.planned_tensor import PlannedTensor
from reshard.conversion.report import ConversionReport, TensorReport
from reshard.engine.task import CastStats
from reshard.formats.contents import Encoding, Item, Leaf, PathKey, StoredTensor
from reshard.geometry.grid import Grid
from reshard.inspection.checkpoint_info import CheckpointInfo, LeafInfo, TensorInfo
from reshard.layout.axes import AxesLike
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import Side

TRAINED = DeviceMesh((4, 2), ("data", "model"))
SERVED = DeviceMesh((8,), ("model",))


def spec(
    name: str,
    shape: tuple[int, ...] = (16, 8),
    axes: AxesLike | None = ("data", "model"),
    mesh: DeviceMesh = TRAINED,
    dtype: str = "float32",
) -> TensorSpec:
    """A tensor whose chunks are its shards."""
    layout = None if axes is None else TensorLayout(axes, mesh)
    slices = Grid.whole(shape) if layout is None else layout.grid(shape, name)
    return TensorSpec(name, shape, dtype, slices, slices.largest, layout)


def info(
    *specs: TensorSpec, digest: str | None = None, others: tuple[str, ...] = ()
) -> CheckpointInfo:
    """A checkpoint of these tensors, with other leaves."""
    meshes = dict.fromkeys(s.layout.device_mesh for s in specs if s.layout is not None)
    numbers = {mesh: number for number, mesh in enumerate(meshes)}
    tensors = {
        s.name: TensorInfo.of(
            StoredTensor(s, Encoding("zstd", 3), b"", may_be_missing=False, digest=digest),
            mesh_number=numbers.get(s.layout and s.layout.device_mesh),
        )
        for s in specs
    }
    leaves = tuple(
        Leaf(name, tuple(map(PathKey, name.split("/"))), tensor=name not in others)
        for name in (*(s.name for s in specs), *others)
    )
    return CheckpointInfo(
        uri="ckpt/1000",
        format="orbax",
        style="v0",
        nbytes=sum(s.nbytes for s in specs),
        tensors=tensors,
        items=(Item("", "", True),),
        meshes=tuple(
            RecordedMesh(m.axis_names, m.shape, m.axis_types, m.device_ids) for m in numbers
        ),
        leaves=tuple(map(LeafInfo.of, leaves)),
    )


def planned(
    *pairs: tuple[TensorSpec, TensorSpec],
    warnings: tuple[str, ...] = (),
    carried: tuple[str, ...] = (),
    dropped: tuple[str, ...] = (),
) -> ConversionPlan:
    """The plan that the planner makes for zstd sources and raw targets."""
    wanted_pieces = [
        WantedPiece(
            Piece.whole(source, target),
            Side(source, "zstd:3", False, 3 << 20),
            Side(target, "raw+crc32c", True, 0),
        )
        for source, target in pairs
    ]
    plan = make_plan(wanted_pieces, 1 << 30, 2, 5 << 20)
    return ConversionPlan(
        source="ckpt/1000",
        target="served",
        tensors=tuple(map(PlannedTensor.of, plan.tensors)),
        totals=PlanTotals.of(plan),
        carried=carried,
        dropped=dropped,
        warnings=warnings,
        free_bytes=64 << 30,
        plan=plan,
    )


def tensor_report(
    name: str, target_dtype: str = "float32", cast: CastStats | None = None
) -> TensorReport:
    """A report of a tensor of 16×8 that was written."""
    digest = "00000000000000aa"
    return TensorReport(
        name, name, (16, 8), "float32", target_dtype, "scatter", 512, digest,
        "00000000000000bb" if cast else digest, "written", cast,
    )  # fmt: skip


def kept_report(name: str, digest: str | None = "00000000000000aa") -> TensorReport:
    """A report of a tensor of 16×8 that a finished target holds."""
    return TensorReport(None, name, (16, 8), None, "float32", None, 512, None, digest, None)


def report(*tensors: TensorReport, warnings: tuple[str, ...] = ()) -> ConversionReport:
    """A conversion of these that took two seconds."""
    size = sum(t.nbytes for t in tensors)
    return ConversionReport(
        "ckpt/1000", "served", tensors, size // 2, size, size, 2.0, warnings=warnings
    )
