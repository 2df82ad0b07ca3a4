"""Records are structs; a dataclass stays only for what a struct cannot be (docs/decisions/0017)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "reshard"

KEPT = {
    # Equality leaves a field out.
    "layout/layout_file.py": {"LayoutFile", "PartitionRule", "Rule"},
    "saving/tensors.py": {"DeviceShard"},
    # What is computed once is kept.
    "variables/sharded/shards.py": {"ShardRows"}, "formats/format.py": {"PlaceNames"},
    # A constructor of its own, or none where a value is known to be right.
    "layout/device_mesh.py": {"DeviceMesh"},
    "geometry/grid.py": {"Grid"},
    "layout/partitioners.py": {
        "FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner",
    },
    "layout/tensor_spec.py": {"SaveSliceInfo"},
    "layout/tensor_layout.py": {"TensorLayout"},
    # Orbax asks for it.
    "saving/orbax_manager.py": {"SliceRestore", "SliceSave"},
}  # fmt: skip


def dataclasses_of(path: Path) -> set[str]:
    """Names of the classes that are made dataclasses, at any depth."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_dataclasses_are_those_that_structs_cannot_be() -> None:
    found = {str(path.relative_to(ROOT)): dataclasses_of(path) for path in ROOT.rglob("*.py")}

    assert {file: names for file, names in found.items() if names} == KEPT
