"""Writes a first layout file for a checkpoint, from the axes that it records.

The file gives every tensor its recorded axes. If the checkpoint records none (numpy arrays, one device), the file
proposes axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import MissingAxes
from reshard.layout.layout_text import flow, quoted
from reshard.layout.merged_rules import Axes, merged_rules
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import SameAxes, layout_warnings, split

PROPOSED_MESH = DeviceMesh((8,), ("model",))
"""The mesh if neither the checkpoint nor the caller names one."""


def starter_text(info: CheckpointInfo, mesh: DeviceMesh | None, missing_axes: MissingAxes) -> str:
    """The layout file for the checkpoint's tensors over ``mesh``, or over their own mesh.

    Raises LayoutError if the axes of a tensor do not fit the mesh.
    """
    specs = [tensor.spec for tensor in info.tensors.values()]
    own = _own_mesh(specs)
    over = mesh or own or PROPOSED_MESH
    if own is None:
        keys = {tensor.spec.name for tensor in info.tensors.values() if tensor.is_key}
        axes = {s.name: () if s.name in keys else _proposed(s, over) for s in specs}
        notes = _proposal_notes(over, is_given=mesh is not None)
    else:
        same = SameAxes(over.abstract, missing_axes)
        axes = {s.name: _kept(s, same) for s in specs}
        notes = ["Each tensor has the axes that the checkpoint records."]
        notes += layout_warnings(same, [s.name for s in specs], specs)
    return "".join(f"{line}\n" for line in _lines(info.uri, specs, over, axes, notes))


def _own_mesh(specs: Sequence[TensorSpec]) -> DeviceMesh | None:
    """The mesh with the most bytes, without devices; None if none was recorded."""
    sizes: Counter[DeviceMesh] = Counter()
    for spec in specs:
        if spec.layout is not None and spec.layout.device_mesh is not None:
            sizes[spec.layout.device_mesh] += spec.nbytes
    return max(sizes, key=lambda mesh: sizes[mesh]).abstract if sizes else None


def _kept(spec: TensorSpec, same: SameAxes) -> Axes:
    layout = split(spec, spec, same).layout
    return () if layout is None else layout.axes


def _proposed(spec: TensorSpec, mesh: DeviceMesh) -> Axes:
    """Splits the largest dimension that the mesh's last axis divides, the last one among equals; vectors stay whole."""
    axis, parts = mesh.axis_names[-1], mesh.shape[-1]
    fitting = [(size, dim) for dim, size in enumerate(spec.shape) if size and size % parts == 0]
    if len(spec.shape) < 2 or not fitting:
        return ()
    _, dim = max(fitting)
    return (*[None] * dim, axis)


def _proposal_notes(mesh: DeviceMesh, *, is_given: bool) -> list[str]:
    axis = mesh.axis_names[-1]
    notes = [
        "The checkpoint records no axes (its arrays are numpy's, or of one device), so this is a",
        f"proposal: {axis!r} splits the largest dimension that it divides; the rest is replicated.",
    ]
    return notes if is_given else [*notes, "The mesh is an example: put yours in its place."]


def _lines(
    uri: str,
    specs: Sequence[TensorSpec],
    mesh: DeviceMesh,
    axes: Mapping[str, Axes],
    notes: Sequence[str],
) -> Iterator[str]:
    by_name = {spec.name: spec for spec in specs}
    yield f"# Layout of {quoted(uri)}."
    yield from (f"# {note}" for note in notes)
    yield "# A name is matched by a regular expression; axes has an entry for each dimension."
    yield f"mesh: {flow(_mesh(mesh))}"
    rules = [(r, [by_name[name] for name in r.names]) for r in merged_rules(axes)]
    yield "rules:" if rules else "rules: []"
    for rule, covered in sorted(rules, key=lambda found: -_nbytes(found[1])):
        yield f"  # {_covered(covered)}"
        shown = {"match": rule.match, "axes": _shown(rule.axes, covered)}
        yield f"  - {flow(shown)}"
    named = {name for rule, _ in rules for name in rule.names}
    rest = [spec for spec in specs if spec.name not in named]
    yield f"# whole on every device: {_covered(rest)}" if rest else "# what no rule matches:"
    yield "unmatched: replicate"


def _mesh(mesh: DeviceMesh) -> dict[str, Any]:
    types = mesh.axis_types or ()
    named = {} if set(types) <= {"Auto"} else {"axis_types": list(types)}
    return {"axes": list(mesh.axis_names), "shape": list(mesh.shape), **named}


def _shown(axes: Axes, covered: Sequence[TensorSpec]) -> list[Any]:
    """The axes as a layout file has them, with an entry for each dimension if all tensors have the same rank."""
    ranks = {len(spec.shape) for spec in covered}
    padding = [None] * (ranks.pop() - len(axes)) if len(ranks) == 1 else []
    return [list(axis) if isinstance(axis, tuple) else axis for axis in axes] + padding


def _covered(specs: Sequence[TensorSpec]) -> str:
    """The number of tensors and bytes, and the largest tensor as an example."""
    largest = max(specs, key=lambda spec: spec.nbytes)
    count = f"{len(specs):,} tensor{'s' * (len(specs) > 1)}"
    example = f"{quoted(largest.name)} {list(largest.shape)}"
    return f"{count}, {format_bytes(_nbytes(specs))}{', such as' * (len(specs) > 1)}: {example}"


def _nbytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)
