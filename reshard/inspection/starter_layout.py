r"""Writes a first layout file for a checkpoint, from the axes that it records.

The file gives every tensor its recorded axes. For a mesh that has other axes, or that does not divide a dimension, it
proposes what comes nearest; likewise if the checkpoint records none (numpy arrays, one device).

Few rules stand for many tensors: names of equal axes are merged into patterns that match nothing else.
Every tensor is given the shortest end of its name, whole parts between slashes, at which all tensors
agree on their axes; numbers count as one part (``[0-9]+``)::

    params/layers/0/mlp/kernel     [null, model]
    params/layers/0/out/kernel     [model, null]      (^|/)mlp/kernel$   [null, model]
    params/layers/1/mlp/kernel     [null, model]  →   (^|/)out/kernel$   [model, null]
    params/layers/1/out/kernel     [model, null]      (^|/)embed$        [model, null]
    params/embed                   [model, null]

Ends that differ in one part then become one pattern, ``(^|/)(query|key|value)/kernel$``. No two patterns match the same
name, so their order does not matter. If no name has a slash, as in models of Hugging Face, parts are those between dots:
``(^|\.)(q|k|v)_proj\.weight$``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.shared import Axes
from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.layout.axes import axis_names, normal_axes, used_axes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import MissingAxes
from reshard.layout.layout_text import flow, quoted
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import SameAxes, layout_warnings, split

_DIGITS = re.compile(r"[0-9]+")
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_NUMBER = "\0"
"""Stands for any number in a part of a name; no name has it."""


class MergedRule(Struct, frozen=True):
    """A pattern, the axes of all tensors that it matches, and their names."""

    match: str
    axes: Axes
    names: tuple[str, ...]


class _End(Struct, frozen=True):
    """Alternatives for each part at the end of a name, or for the whole name."""

    parts: tuple[frozenset[str], ...]
    is_whole: bool
    is_numbered: bool


def merged_rules(axes: Mapping[str, Axes]) -> list[MergedRule]:
    """Rules that give each name its axes, except for trailing None; no rule matches a name without axes.

    Names must not contain NUL. Rules are in the order of their first names.
    """
    wanted = {name: _trimmed(own) for name, own in axes.items()}
    letters = set().union(*wanted)
    separator = "." if "." in letters and "/" not in letters else "/"
    found: dict[tuple[Axes, _End], list[str]] = {}
    for name, end in _ends(wanted, separator).items():
        if wanted[name]:
            found.setdefault((wanted[name], end), []).append(name)
    stop = r"\Z" if any("\n" in name for name in wanted) else "$"
    return [
        MergedRule(_pattern(end, separator, stop), own, tuple(names))
        for (own, end), names in _merged(found).items()
    ]


def _trimmed(axes: Axes) -> Axes:
    """The axes without trailing None, which padding adds again."""
    while axes and axes[-1] is None:
        axes = axes[:-1]
    return axes


def _ends(wanted: Mapping[str, Axes], separator: str) -> dict[str, _End]:
    """The shortest end of each name on which all names agree; numbers are kept only if that is needed."""
    numbered = {name: _DIGITS.sub(_NUMBER, name).split(separator) for name in wanted}
    known = _shortest(numbered, wanted, frozenset(wanted), is_numbered=True)
    left = frozenset(wanted) - known.keys()
    plain = {name: name.split(separator) for name in wanted} if left else {}
    return known | _shortest(plain, wanted, left, is_numbered=False)


def _shortest(
    parts: Mapping[str, list[str]],
    wanted: Mapping[str, Axes],
    names: frozenset[str],
    *,
    is_numbered: bool,
) -> dict[str, _End]:
    """For each of ``names``, the shortest end that only names with the same axes have; some names have no such end."""
    seen: dict[_Candidate, set[Axes | None]] = {}
    for name, own in parts.items():
        for candidate in _candidates(own):
            seen.setdefault(candidate, set()).add(wanted[name] if name in names else None)
    found = {}
    for name in (name for name in parts if name in names):
        for candidate in _candidates(parts[name]):
            if len(seen[candidate]) == 1 and None not in seen[candidate]:
                is_whole, end = candidate
                alone = tuple(frozenset([part]) for part in end)
                found[name] = _End(alone, is_whole, is_numbered)
                break
    return found


_Candidate = tuple[bool, tuple[str, ...]]
"""A flag for the whole name, and the parts."""


def _candidates(parts: Sequence[str]) -> Iterator[_Candidate]:
    """Every end of a name, from the shortest, and at last the whole name."""
    yield from ((False, tuple(parts[-n:])) for n in range(1, len(parts) + 1))
    yield True, tuple(parts)


_Found = dict[tuple[Axes, _End], list[str]]


def _merged(found: _Found) -> _Found:
    """Merges ends with equal axes that differ in one part, until there are no more."""
    while True:
        before = len(found)
        longest = max((len(end.parts) for _, end in found), default=0)
        for place in range(longest):
            found = _merged_at(found, place)
        if len(found) == before:
            return found


def _merged_at(found: _Found, place: int) -> _Found:
    """Merges ends that differ only in the part at ``place``, counted from the end."""
    alike: dict[Hashable, list[tuple[Axes, _End]]] = {}
    for axes, end in found:
        at = len(end.parts) - 1 - place
        others = (end.parts[:at], end.parts[at + 1 :]) if at >= 0 else end.parts
        alike.setdefault((axes, end.is_whole, end.is_numbered, at, others), []).append((axes, end))
    merged: _Found = {}
    for keys in alike.values():
        axes, end = keys[0]
        at = len(end.parts) - 1 - place
        if at >= 0:
            union = frozenset[str]().union(*(other.parts[at] for _, other in keys))
            end = replace(end, parts=(*end.parts[:at], union, *end.parts[at + 1 :]))
        merged[axes, end] = [name for key in keys for name in found[key]]
    return merged


def _pattern(end: _End, separator: str, stop: str) -> str:
    between = _escaped(separator)
    start = "^" if end.is_whole else f"(^|{between})"
    return f"{start}{between.join(map(_part, end.parts))}{stop}"


def _part(alternatives: frozenset[str]) -> str:
    """A pattern for the alternatives of one part; alternatives that differ only in one number share the text around
    it."""
    (form, *others) = {_DIGITS.sub(_NUMBER, text) for text in alternatives}
    if len(alternatives) > 1 and not others and form.count(_NUMBER) == 1:
        before, after = map(_escaped, form.split(_NUMBER))
        return f"{before}{_choice(set(_DIGITS.findall(' '.join(alternatives))))}{after}"
    return _choice(alternatives)


def _choice(alternatives: Set[str]) -> str:
    patterns = [
        _escaped(text) for text in sorted(alternatives, key=lambda t: (len(t) * t.isdigit(), t))
    ]
    return patterns[0] if len(patterns) == 1 else f"({'|'.join(patterns)})"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text).replace(_NUMBER, "[0-9]+")


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
