"""Writes a first layout file for a checkpoint, from the axes that it records.

The file gives every tensor its recorded axes. For a mesh that has other axes, or that does not divide a dimension, it
proposes what comes nearest; likewise if the checkpoint records none (numpy arrays, one device).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.answers.shared import Axes
from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.layout.axes import axis_names, normal_axes, used_axes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import MissingAxes
from reshard.layout.layout_text import flow, quoted
from reshard.layout.merged_rules import MergedRule, merged_rules
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import SameAxes, layout_warnings, split

PROPOSED_MESH = DeviceMesh((8,), ("model",))
"""The mesh if neither the checkpoint nor the caller names one."""


def starter_text(
    info: CheckpointInfo, mesh: DeviceMesh | None, missing_axes: MissingAxes | None = None
) -> str:
    """The layout file for the checkpoint's tensors over ``mesh``, or over their own mesh.

    Raises LayoutError if the axes of a tensor do not fit the mesh and ``missing_axes`` is given.
    """
    specs = [tensor.spec for tensor in info.tensors.values()]
    own = _own_mesh(specs)
    over = mesh or own or PROPOSED_MESH
    if own is None:
        axes = {
            tensor.spec.name: () if tensor.is_key else _proposed(tensor.spec, over)
            for tensor in info.tensors.values()
        }
        notes = [_NO_AXES, *_proposal_notes(over, is_given=mesh is not None)]
    elif missing_axes is None:
        axes, notes = _fitted(specs, own, over)
    else:
        same = SameAxes(over.abstract, missing_axes)
        axes = {s.name: _kept(s, same) for s in specs}
        notes = [_AS_RECORDED]
        notes += layout_warnings(same, [s.name for s in specs], specs)
    return "\n".join([*_lines(info.uri, specs, over, axes, notes), ""])


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


def _fitted(
    specs: Sequence[TensorSpec], own: DeviceMesh, mesh: DeviceMesh
) -> tuple[dict[str, Axes], list[str]]:
    """The recorded axes as far as they fit the mesh, and notes about the proposals."""
    names = _names_there(specs, own, mesh)
    lacking = [name for name in _used(specs) if name not in names]
    axes = {spec.name: _nearest(spec, mesh, names) for spec in specs}
    if lacking and not any(map(any, axes.values())):
        first = f"The checkpoint was saved on {own}, which has other axes, so this is a"
        split = {s.name for s in specs if s.layout is not None and any(s.layout.axes)}
        proposed = {s.name: _proposed(s, mesh) if s.name in split else () for s in specs}
        return proposed, [first, *_proposal_notes(mesh)]
    whole = [s for s in specs if (used_axes(axes[s.name]) != used_axes(_renamed(s, names)))]
    return axes, _fit_notes(own, mesh, names, lacking, whole)


def _fit_notes(
    own: DeviceMesh,
    mesh: DeviceMesh,
    names: Mapping[str, str],
    lacking: Sequence[str],
    whole: Sequence[TensorSpec],
) -> list[str]:
    """Notes on recorded axes that change on the mesh."""
    renamed = [f"{new!r} for {old!r}" for old, new in names.items() if old != new]
    notes = [] if lacking or renamed or whole else [_AS_RECORDED]
    if renamed:
        notes.append(f"Saved on {own}. This is a proposal: it writes {', '.join(renamed)}.")
    if lacking:
        notes.append(
            f"Saved with axes that {mesh} lacks: {', '.join(map(repr, lacking))}; what they split is replicated instead."
        )
    if whole:
        notes.append(f"What {mesh} does not divide is left whole: {_covered(whole)}.")
    return notes


def _used(specs: Sequence[TensorSpec]) -> list[str]:
    """Every axis that splits a tensor."""
    found = (name for s in specs if s.layout is not None for name in used_axes(s.layout.axes))
    return list(dict.fromkeys(found))


def _names_there(specs: Sequence[TensorSpec], own: DeviceMesh, mesh: DeviceMesh) -> dict[str, str]:
    """The mesh's name of each axis: the same, or in order, if as many names are missing as are new."""
    used = set(_used(specs))
    lacking = [name for name in own.axis_names if name in used and name not in mesh.axis_names]
    new = [name for name in mesh.axis_names if name not in own.axis_names]
    paired = dict(zip(lacking, new, strict=True)) if len(lacking) == len(new) else {}
    return {name: name for name in used if name in mesh.axis_names} | paired


def _nearest(spec: TensorSpec, mesh: DeviceMesh, names: Mapping[str, str]) -> Axes:
    """The axes under their names there; a dimension that they do not divide is whole."""
    there = _renamed(spec, names)
    parts = (math.prod(mesh.axis_size(name) for name in axis_names(axis)) for axis in there)
    divided = zip(there, spec.shape, parts, strict=False)
    return tuple(None if size % count else axis for axis, size, count in divided)


def _renamed(spec: TensorSpec, names: Mapping[str, str]) -> Axes:
    axes = () if spec.layout is None else spec.layout.axes
    return normal_axes(tuple(names[n] for n in axis_names(axis) if n in names) for axis in axes)


def _proposed(spec: TensorSpec, mesh: DeviceMesh) -> Axes:
    """Splits the largest dimension that the mesh's last axis divides, the last one among equals; vectors stay whole."""
    axis, parts = mesh.axis_names[-1], mesh.shape[-1]
    fitting = [(size, dim) for dim, size in enumerate(spec.shape) if size and size % parts == 0]
    if len(spec.shape) < 2 or not fitting:
        return ()
    _, dim = max(fitting)
    return (*[None] * dim, axis)


_AS_RECORDED = "Each tensor has the axes that the checkpoint records."
_NO_AXES = "The checkpoint records no axes (its arrays are numpy's, or of one device), so this is a"


def _proposal_notes(mesh: DeviceMesh, *, is_given: bool = True) -> list[str]:
    axis = mesh.axis_names[-1]
    notes = [
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
    rules = _rules(specs, axes)
    yield f"# Layout of {quoted(uri)}."
    yield from (f"# {note}" for note in notes)
    yield "# A name is matched by a regular expression; axes has an entry for each dimension."
    yield f"mesh: {flow(_mesh(mesh))}"
    yield "rules:" if rules else "rules: []"
    for rule, covered in rules:
        yield f"  # {_covered(covered)}"
        shown = {"match": rule.match, "axes": _shown(rule.axes, covered)}
        yield f"  - {flow(shown)}"
    named = {name for rule, _ in rules for name in rule.names}
    rest = [spec for spec in specs if spec.name not in named]
    yield f"# whole on every device: {_covered(rest)}" if rest else "# what no rule matches:"
    yield "unmatched: replicate"


def _rules(
    specs: Sequence[TensorSpec], axes: Mapping[str, Axes]
) -> list[tuple[MergedRule, list[TensorSpec]]]:
    """Each rule and the tensors that it covers, those with the most bytes first."""
    by_name = {spec.name: spec for spec in specs}
    rules = [(r, [by_name[name] for name in r.names]) for r in merged_rules(axes)]
    return sorted(rules, key=lambda found: -_nbytes(found[1]))


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
