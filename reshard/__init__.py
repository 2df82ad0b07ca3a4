"""Converts sharded checkpoints from one device mesh to another.

>>> import reshard
>>> layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",)))
>>> layout["dense.*kernel"] = (None, "model")

``reshard.convert(source, target, layout=layout)`` then converts, on any host, without either mesh's devices.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from reshard.api.conversion import check_arguments, convert, convert_all, plan, plan_all
from reshard.api.deltas import apply, clean_versions, delta, inspect_versions
from reshard.api.identity import identify, prove, sign
from reshard.api.inspection import (
    checkpoint_format,
    inspect,
    inspect_run,
    is_checkpoint,
    locate,
    preview_layout,
    starter_layout,
    steps,
)
from reshard.api.merging import merge
from reshard.api.restoring import open_checkpoint, restore
from reshard.api.targets import (
    begin_parts,
    clean,
    commit,
    commit_all,
    convert_part,
    doctor,
    join_part,
)
from reshard.api.verification import diff, fingerprint, verify
from reshard.api.views import open_view
from reshard.arguments import (
    DeltaChecksum,
    DeltaEncoding,
    DeltaReceiver,
    Dequantized,
    MissingChunks,
    Unlisted,
)
from reshard.conversion.options import Check, ConvertOptions, FormatName, IdentityMode, Target
from reshard.errors import (
    CheckpointWarning,
    CorruptError,
    ForbiddenError,
    FormatError,
    IncompleteCheckpointError,
    LayoutError,
    LayoutWarning,
    MemoryBudgetError,
    MissingChunksWarning,
    MissingError,
    MissingPackageError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    SyncError,
    TargetBusyError,
    TargetExistsError,
    TreeError,
    VariableError,
    VariableIndexError,
    VariableTypeError,
    VerificationError,
)
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import LayoutMap, add_scope_hook, layout_map_scope
from reshard.layout.tensor_layout import TensorLayout
from reshard.restoring.options import RestoreOptions
from reshard.version import __version__

if TYPE_CHECKING:
    from reshard.api.progress_lines import progress_bar
    from reshard.checkpoint import OpenedCheckpoint
    from reshard.conversion.plan import (
        ConversionPlan,
        MapSummary,
        MultiConversionPlan,
        PlannedIdentity,
    )
    from reshard.conversion.planned_tensor import PlannedTensor
    from reshard.conversion.report import (
        BegunParts,
        ConversionReport,
        IdentityReport,
        MultiReport,
        PartReport,
        RequestReport,
        TensorReport,
    )
    from reshard.deltas.report import DeltaReport, DeltaTensor
    from reshard.deltas.versions import CleanedVersions, VersionInfo
    from reshard.engine.limits import Limits
    from reshard.engine.progress import Progress, Stage
    from reshard.engine.task import CastStats
    from reshard.formats.contents import Encoding, Item, Style
    from reshard.formats.slices.file_digests import FileVerdict
    from reshard.formats.target_files import FilesOf
    from reshard.geometry.grid import Box, Grid
    from reshard.identity.identification import Identification
    from reshard.identity.slice_proof import SliceProof
    from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
    from reshard.inspection.checkpoint_info import CheckpointInfo, TensorInfo
    from reshard.inspection.layout_preview import LayoutPreview, TensorPreview
    from reshard.inspection.run_steps import StepInfo
    from reshard.layout.device_mesh import list_devices
    from reshard.layout.layout_file import MissingAxes
    from reshard.layout.partitioners import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        Partitioner,
    )
    from reshard.layout.tensor_spec import SaveSliceInfo, TensorSpec
    from reshard.planning.estimates import RequestPlan, TimePlan
    from reshard.restoring.restore import RestoreReport
    from reshard.saving.prove_arrays import ArrayProof, ProofReport
    from reshard.saving.save import SaveHandle, save
    from reshard.storage.base import PlannedRequests, Requests
    from reshard.storage.buckets.doctor import BucketCheck, BucketReport
    from reshard.storage.leftovers import Leftovers
    from reshard.streaming.shard_stream import ShardStream
    from reshard.streaming.tensor_stream import TensorStream
    from reshard.variables.distribute import distribute_tensor
    from reshard.variables.sharded.updating import IndexedSlices
    from reshard.variables.sharded.variable import ShardedVariable, embedding_lookup
    from reshard.verification.fingerprint import Fingerprint
    from reshard.verification.reports import (
        DiffReport,
        IdentityVerdict,
        LeafDiff,
        ReceiptVerdict,
        TensorDiff,
        TensorVerdict,
        Verification,
    )
    from reshard.views.blocks import Blocks
    from reshard.views.checkpoint_view import CheckpointView
    from reshard.views.view_file import ViewFile


__all__ = [
    "ArrayProof",
    "BegunParts",
    "Blocks",
    "Box",
    "BucketCheck",
    "BucketReport",
    "CastStats",
    "Check",
    "CheckpointInfo",
    "CheckpointView",
    "CheckpointWarning",
    "CleanedVersions",
    "ConversionPlan",
    "ConversionReport",
    "ConvertOptions",
    "CorruptError",
    "DeltaChecksum",
    "DeltaEncoding",
    "DeltaReceiver",
    "DeltaReport",
    "DeltaTensor",
    "Dequantized",
    "DeviceMesh",
    "DiffReport",
    "Encoding",
    "FileVerdict",
    "FilesOf",
    "Fingerprint",
    "FixedShardsPartitioner",
    "ForbiddenError",
    "FormatError",
    "FormatName",
    "Grid",
    "Identification",
    "IdentityMode",
    "IdentityReport",
    "IdentityVerdict",
    "IncompleteCheckpointError",
    "IndexedSlices",
    "Item",
    "LayoutError",
    "LayoutMap",
    "LayoutPreview",
    "LayoutWarning",
    "LeafDiff",
    "Leftovers",
    "Limits",
    "MapSummary",
    "MaxSizePartitioner",
    "MemoryBudgetError",
    "MinSizePartitioner",
    "MissingAxes",
    "MissingChunks",
    "MissingChunksWarning",
    "MissingError",
    "MissingPackageError",
    "MultiConversionPlan",
    "MultiReport",
    "NotACheckpointError",
    "OpenedCheckpoint",
    "PartReport",
    "Partitioner",
    "PlanError",
    "PlannedIdentity",
    "PlannedRequests",
    "PlannedTensor",
    "Progress",
    "ProofReport",
    "ReceiptVerdict",
    "RequestPlan",
    "RequestReport",
    "Requests",
    "ReshardError",
    "RestoreOptions",
    "RestoreReport",
    "ResumeError",
    "SaveHandle",
    "SaveSliceInfo",
    "ShardStream",
    "ShardedVariable",
    "SliceProof",
    "SourceChangedError",
    "Stage",
    "StepInfo",
    "StorageError",
    "Style",
    "SyncError",
    "Target",
    "TargetBusyError",
    "TargetExistsError",
    "TensorDiff",
    "TensorIdentity",
    "TensorInfo",
    "TensorLayout",
    "TensorPreview",
    "TensorReport",
    "TensorSpec",
    "TensorStream",
    "TensorVerdict",
    "TimePlan",
    "TreeError",
    "Unlisted",
    "VariableError",
    "VariableIndexError",
    "VariableTypeError",
    "Verification",
    "VerificationError",
    "VersionInfo",
    "ViewFile",
    "WeightsIdentity",
    "__version__",
    "apply",
    "begin_parts",
    "check_arguments",
    "checkpoint_format",
    "clean",
    "clean_versions",
    "commit",
    "commit_all",
    "convert",
    "convert_all",
    "convert_part",
    "delta",
    "diff",
    "distribute_tensor",
    "doctor",
    "embedding_lookup",
    "fingerprint",
    "identify",
    "inspect",
    "inspect_run",
    "inspect_versions",
    "is_checkpoint",
    "join_part",
    "layout_map_scope",
    "list_devices",
    "locate",
    "merge",
    "open_checkpoint",
    "open_view",
    "plan",
    "plan_all",
    "preview_layout",
    "progress_bar",
    "prove",
    "restore",
    "save",
    "sign",
    "starter_layout",
    "steps",
    "verify",
]

_LAZY = {
    "ArrayProof": "reshard.saving.prove_arrays",
    "BegunParts": "reshard.conversion.report",
    "Box": "reshard.geometry.grid",
    "BucketCheck": "reshard.storage.buckets.doctor",
    "Blocks": "reshard.views.blocks",
    "BucketReport": "reshard.storage.buckets.doctor",
    "CastStats": "reshard.engine.task",
    "CheckpointInfo": "reshard.inspection.checkpoint_info",
    "CheckpointView": "reshard.views.checkpoint_view",
    "ConversionPlan": "reshard.conversion.plan",
    "ConversionReport": "reshard.conversion.report",
    "CleanedVersions": "reshard.deltas.versions",
    "DeltaReport": "reshard.deltas.report",
    "DeltaTensor": "reshard.deltas.report",
    "DiffReport": "reshard.verification.reports",
    "Encoding": "reshard.formats.contents",
    "FileVerdict": "reshard.formats.slices.file_digests",
    "FilesOf": "reshard.formats.target_files",
    "Fingerprint": "reshard.verification.fingerprint",
    "Identification": "reshard.identity.identification",
    "IdentityReport": "reshard.conversion.report",
    "IdentityVerdict": "reshard.verification.reports",
    "ReceiptVerdict": "reshard.verification.reports",
    "TensorIdentity": "reshard.identity.weights_identity",
    "FixedShardsPartitioner": "reshard.layout.partitioners",
    "Grid": "reshard.geometry.grid",
    "IndexedSlices": "reshard.variables.sharded.updating",
    "Item": "reshard.formats.contents",
    "LayoutPreview": "reshard.inspection.layout_preview",
    "LeafDiff": "reshard.verification.reports",
    "Leftovers": "reshard.storage.leftovers",
    "Limits": "reshard.engine.limits",
    "MapSummary": "reshard.conversion.plan",
    "MaxSizePartitioner": "reshard.layout.partitioners",
    "MinSizePartitioner": "reshard.layout.partitioners",
    "MissingAxes": "reshard.layout.layout_file",
    "MultiConversionPlan": "reshard.conversion.plan",
    "MultiReport": "reshard.conversion.report",
    "OpenedCheckpoint": "reshard.checkpoint",
    "Partitioner": "reshard.layout.partitioners",
    "PartReport": "reshard.conversion.report",
    "PlannedIdentity": "reshard.conversion.plan",
    "PlannedRequests": "reshard.storage.base",
    "PlannedTensor": "reshard.conversion.planned_tensor",
    "Progress": "reshard.engine.progress",
    "ProofReport": "reshard.saving.prove_arrays",
    "RequestPlan": "reshard.planning.estimates",
    "RequestReport": "reshard.conversion.report",
    "Requests": "reshard.storage.base",
    "RestoreReport": "reshard.restoring.restore",
    "SaveHandle": "reshard.saving.save",
    "SaveSliceInfo": "reshard.layout.tensor_spec",
    "ShardStream": "reshard.streaming.shard_stream",
    "ShardedVariable": "reshard.variables.sharded.variable",
    "SliceProof": "reshard.identity.slice_proof",
    "Stage": "reshard.engine.progress",
    "StepInfo": "reshard.inspection.run_steps",
    "Style": "reshard.formats.contents",
    "TensorDiff": "reshard.verification.reports",
    "TensorInfo": "reshard.inspection.checkpoint_info",
    "TensorPreview": "reshard.inspection.layout_preview",
    "TensorReport": "reshard.conversion.report",
    "TensorSpec": "reshard.layout.tensor_spec",
    "TensorStream": "reshard.streaming.tensor_stream",
    "TensorVerdict": "reshard.verification.reports",
    "TimePlan": "reshard.planning.estimates",
    "Verification": "reshard.verification.reports",
    "WeightsIdentity": "reshard.identity.weights_identity",
    "VersionInfo": "reshard.deltas.versions",
    "ViewFile": "reshard.views.view_file",
    "distribute_tensor": "reshard.variables.distribute",
    "embedding_lookup": "reshard.variables.sharded.variable",
    "list_devices": "reshard.layout.device_mesh",
    "progress_bar": "reshard.api.progress_lines",
    "save": "reshard.saving.save",
}
"""Names whose modules are loaded on first use: live weights, and the types that calls return."""


if not TYPE_CHECKING:  # a type checker would take every name for one that is here

    def __getattr__(name: str) -> object:
        """One of ``_LAZY`` (PEP 562); from then on it is found without this call."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)


def _keras_scope() -> AbstractContextManager[None]:
    """The changes of a layout map's scope to Keras, if the program has imported Keras."""
    if "keras" not in sys.modules:
        return nullcontext()
    from reshard.variables.lazy.keras_scope import keras_scope

    return keras_scope()


add_scope_hook(_keras_scope)
