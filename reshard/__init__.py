"""Converts sharded checkpoints from one device mesh to another.

>>> import reshard
>>> layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",)))
>>> layout["dense.*kernel"] = (None, "model")

``reshard.convert(src, dst, layout=layout)`` then converts, on any host, without either mesh's devices.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from reshard.api import (
    convert,
    convert_to_many,
    diff,
    fingerprint,
    inspect,
    lay_out,
    open_checkpoint,
    plan,
    plan_to_many,
    restore,
    starter_layout,
    verify,
)
from reshard.engine.goal import Goal
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    LayoutError,
    LayoutWarning,
    MemoryBudgetError,
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
from reshard.layout.layout_map import LayoutMap
from reshard.layout.mesh import DeviceMesh, TensorLayout
from reshard.layout.scope import layout_map_scope
from reshard.version import __version__

if TYPE_CHECKING:
    from reshard.layout.partitioners import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
    )
    from reshard.layout.slice_info import SaveSliceInfo
    from reshard.saving.save import save
    from reshard.variables.distribute import distribute_tensor
    from reshard.variables.indexed_slices import IndexedSlices
    from reshard.variables.sharded import ShardedVariable

__all__ = [
    "CorruptError",
    "DeviceMesh",
    "FixedShardsPartitioner",
    "FormatError",
    "Goal",
    "IncompleteCheckpointError",
    "IndexedSlices",
    "LayoutError",
    "LayoutMap",
    "LayoutWarning",
    "MaxSizePartitioner",
    "MemoryBudgetError",
    "MinSizePartitioner",
    "MissingPackageError",
    "NotACheckpointError",
    "PlanError",
    "ReshardError",
    "ResumeError",
    "SaveSliceInfo",
    "ShardedVariable",
    "SourceChangedError",
    "StorageError",
    "SyncError",
    "TargetBusyError",
    "TargetExistsError",
    "TensorLayout",
    "TreeError",
    "VariableError",
    "VariableIndexError",
    "VariableTypeError",
    "VerificationError",
    "__version__",
    "convert",
    "convert_to_many",
    "diff",
    "distribute_tensor",
    "fingerprint",
    "inspect",
    "lay_out",
    "layout_map_scope",
    "open_checkpoint",
    "plan",
    "plan_to_many",
    "restore",
    "save",
    "starter_layout",
    "verify",
]

_FOR_LIVE_WEIGHTS = {
    "FixedShardsPartitioner": "reshard.layout.partitioners",
    "IndexedSlices": "reshard.variables.indexed_slices",
    "MaxSizePartitioner": "reshard.layout.partitioners",
    "MinSizePartitioner": "reshard.layout.partitioners",
    "SaveSliceInfo": "reshard.layout.slice_info",
    "ShardedVariable": "reshard.variables.sharded",
    "distribute_tensor": "reshard.variables.distribute",
    "save": "reshard.saving.save",
}
"""Where names are that no conversion needs; their modules are loaded when one is first asked for."""


def __getattr__(name: str) -> object:
    """One of ``_FOR_LIVE_WEIGHTS`` (PEP 562); from then on it is found without this call."""
    if name not in _FOR_LIVE_WEIGHTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_FOR_LIVE_WEIGHTS[name]), name)
    return value


def __dir__() -> list[str]:
    """Every name, whether it is loaded or not."""
    return sorted({*globals(), *_FOR_LIVE_WEIGHTS})
