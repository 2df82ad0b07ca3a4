"""The names at the top of reshard: pinned, documented, and not hidden by packages of the same name."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest

import reshard

ROOT = Path(__file__).parents[2]

PUBLIC = [
    "ArrayProof", "BegunParts", "Blocks", "Box", "BucketCheck", "BucketReport", "CastStats", "Check", "CheckpointInfo", "CheckpointView", "CheckpointWarning", "CleanedVersions",
    "ConversionPlan", "ConversionReport", "ConvertOptions", "CorruptError", "DeltaChecksum", "DeltaEncoding", "DeltaReceiver",
    "DeltaReport", "DeltaTensor", "Dequantized", "DeviceMesh", "DiffReport", "Encoding", "FileVerdict", "FilesOf", "Fingerprint",
    "FixedShardsPartitioner", "ForbiddenError", "FormatError", "FormatName", "Grid", "Identification", "IdentityMode",
    "IdentityReport", "IdentityVerdict", "IncompleteCheckpointError", "IndexedSlices", "Item", "LayoutError",
    "LayoutMap", "LayoutPreview", "LayoutWarning", "LeafDiff", "Leftovers", "Limits", "MapSummary",
    "MaxSizePartitioner", "MemoryBudgetError", "MinSizePartitioner", "MissingAxes", "MissingChunks",
    "MissingChunksWarning", "MissingError", "MissingPackageError", "MultiConversionPlan", "MultiReport",
    "NotACheckpointError", "OpenedCheckpoint", "PartReport", "Partitioner", "PlanError", "PlannedIdentity",
    "PlannedRequests", "PlannedTensor", "Progress", "ProofReport", "ReceiptVerdict", "RequestPlan", "RequestReport", "Requests",
    "ReshardError", "RestoreOptions", "RestoreReport", "ResumeError", "SaveHandle", "SaveSliceInfo", "ShardStream",
    "ShardedVariable", "SliceProof", "SourceChangedError", "Stage", "StepInfo", "StorageError", "Style", "SyncError",
    "Target", "TargetBusyError", "TargetExistsError", "TensorDiff", "TensorIdentity", "TensorInfo", "TensorLayout",
    "TensorPreview", "TensorReport", "TensorSpec", "TensorStream", "TensorVerdict", "TimePlan",
    "TreeError", "Unlisted", "VariableError", "VariableIndexError", "VariableTypeError", "Verification",
    "VerificationError", "VersionInfo", "ViewFile", "WeightsIdentity", "__version__", "apply", "begin_parts", "check_arguments",
    "checkpoint_format", "clean", "clean_versions", "commit", "commit_all", "convert", "convert_all", "convert_part", "delta", "diff",
    "distribute_tensor", "doctor", "embedding_lookup", "fingerprint", "identify", "inspect", "inspect_run",
    "inspect_versions", "is_checkpoint", "join_part", "layout_map_scope", "list_devices", "locate", "merge", "open_checkpoint", "open_view", "plan",
    "plan_all", "preview_layout", "progress_bar", "prove", "restore", "save", "sign", "starter_layout", "steps",
    "verify",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert reshard.__all__ == PUBLIC


def test_every_public_name_says_what_it_is() -> None:
    for name in PUBLIC:
        found = getattr(reshard, name)
        if get_origin(found) is Literal:
            continue  # the choices say it
        own = found.__dict__.get("__doc__") if isinstance(found, type) else found.__doc__
        assert own, name
        assert not own.startswith(f"{name}("), name  # what dataclasses write by themselves


def test_every_public_method_says_what_it_does() -> None:
    types = [found for name in PUBLIC if isinstance(found := getattr(reshard, name), type)]
    bare = [
        f"{found.__name__}.{key}"
        for found in types
        for key, value in vars(found).items()
        if not key.startswith("_")
        and isinstance(value, property | classmethod | staticmethod) | inspect.isfunction(value)
        and not inspect.getdoc(getattr(found, key))
    ]
    assert bare == []


def returned_by(name: str) -> dict[str, str]:
    """The annotations of what a public function, or each public method of a class, returns."""
    found = getattr(reshard, name)
    kinds = reversed(found.__mro__) if isinstance(found, type) else ()
    own = [vars(kind) for kind in kinds if kind.__module__.startswith("reshard.")]
    members = {key: value for kind in own for key, value in kind.items()} or {name: found}
    plain = {
        key: getattr(value, "fget", getattr(value, "__func__", value))
        for key, value in members.items()
    }
    return {
        key: str(function.__annotations__.get("return", ""))
        for key, function in plain.items()
        if not key.startswith("_") and inspect.isfunction(function)
    }


def test_every_type_that_a_call_returns_is_public() -> None:
    own = {
        node.name
        for path in (ROOT / "reshard").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    hidden = {
        (name, key, kind)
        for name in PUBLIC
        for key, annotation in returned_by(name).items()
        for kind in re.findall(r"\b[A-Z]\w+", annotation)
        if kind in own and kind not in PUBLIC
    }
    assert hidden == {("ShardedVariable", "shape", "Shape")}  # a tuple


def test_every_error_is_public() -> None:
    own = vars(reshard.errors).items()
    errors = {n for n, e in own if isinstance(e, type) and e.__module__ == reshard.errors.__name__}
    assert errors <= set(PUBLIC)
    assert all(issubclass(getattr(reshard, n), reshard.ReshardError | Warning) for n in errors)


def printed_by(code: str) -> list[str]:
    """The lines that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_functions_stay_functions_once_every_module_is_loaded() -> None:
    code = (
        "import importlib, pkgutil, types, reshard\n"
        "for found in pkgutil.walk_packages(reshard.__path__, 'reshard.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "print([n for n in reshard.__all__ if isinstance(getattr(reshard, n), types.ModuleType)])\n"
    )
    assert printed_by(code) == ["[]"]


def test_what_only_live_weights_need_is_loaded_when_it_is_asked_for() -> None:
    code = (
        "import sys, reshard\n"
        "print(sorted(reshard.__all__) == dir(reshard))\n"
        "print([n for n in sys.modules if n.startswith(('reshard.variables', 'reshard.saving'))])\n"
        "reshard.ShardedVariable\n"
        "print('reshard.variables.sharded.variable' in sys.modules, 'ShardedVariable' in vars(reshard))\n"
    )
    assert printed_by(code) == ["True", "[]", "True True"]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^module 'reshard' has no attribute 'convrt'$"):
        reshard.convrt  # noqa: B018  # the look-up is what is tested
