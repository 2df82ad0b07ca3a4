"""ConversionKey: a source, its state, and the options of its conversion. A run resumes only a run of the same key.

The state of the source is the name, size and time of change of every file in it, in a bucket the name and version:
nothing else shows that a checkpoint was written anew, short of reading it. slices.json and the files of an identity do not
count, since recording digests or signing does not change a checkpoint.

The options of a target as plain data, which parts of a conversion record for one another.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from reshard.arguments import Unlisted
from reshard.conversion.check_target import AS_ASKED, CheckedTarget, check_target, check_targets
from reshard.conversion.declared_options import OF_EVERY_FORMAT
from reshard.conversion.options import Target
from reshard.engine.limits import Limits
from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.known_formats import files_of, format_options
from reshard.formats.names import OF_RECORDS
from reshard.geometry.sizes import exact_bytes
from reshard.layout.axes import show_axes
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile, layout_to_mapping
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import parse_layout
from reshard.planning.plans import Fill, Plan
from reshard.planning.target_layouts import Layout, LayoutTree, SameAxes
from reshard.storage.location import MISSING, Location, locate, real_text
from reshard.version import __version__

if TYPE_CHECKING:
    from reshard.formats.computed.formula import Computation

MAX_SHOWN = 60
"""Characters of a setting in a message; layouts may be long."""

_OTHER_PLAN = (
    "the plan changed, perhaps since other targets share its reads or another executor was given"
)

_OF_THE_RUN = frozenset({"max_memory", "workers", "reshard"})
"""Settings that change how the work is cut, but no byte of the output."""


class ConversionKey(Struct, frozen=True):
    """The key of one conversion of one source.

    Attributes:
        source: its path, links resolved.
        files: digest of the name, size and time of change of every file in it, but those of ``formats.slices.slice_file``.
        settings: the options, as a person reads them; other options have other texts.
        plan: digest of all moves and their units; "" before it was planned.
    """

    source: str
    files: str
    settings: Mapping[str, str]
    plan: str = ""

    @property
    def output(self) -> str:
        """Name of the finished result, 32 hex digits; the same however it was cut into tasks."""
        lasting = {k: v for k, v in self.settings.items() if k not in _OF_THE_RUN}
        return _digest([self.source, self.files, *map(str, sorted(lasting.items()))])


def key_of_conversion(
    source: str,
    target: CheckedTarget,
    files: str,
    unlisted: Unlisted = "leave",
    computed: Sequence[Computation] = (),
) -> ConversionKey:
    """The key of converting ``source``, whose state is ``files``, and of which another is computed; not planned yet."""
    settings = _settings(target)
    # Defaults are left out, so that the keys of earlier versions stay the same.
    if unlisted != "leave":
        settings["unlisted"] = unlisted
    settings |= {each.option[0]: each.text for each in computed}
    if target.version is not None:  # which the target records
        settings["version"] = str(int(target.version))
    return ConversionKey(real_text(locate(source)), files, settings)


def source_state(root: Location, computed: Sequence[Computation] = ()) -> str:
    """Digest of the state of a checkpoint's files, and of those that ``computed`` reads, 32 hex digits.

    The state is locally name, size and time of change (ns), in a bucket the version.

    The files are all that are below a folder, a file by itself, or those that a prefix stands for.

    A missing file counts as missing here; reading it is an error. Raises StorageError where the system refuses
    to list a folder: a state that is only half known would be another one the next time.
    """
    # Places of computations are looked up anew, since what was listed of them for reading stays the same.
    others = (locate(str(place)) for each in computed for place in each.places)
    return _digest(itertools.chain(_state_lines(root), *map(_state_lines, others)))


def _state_lines(root: Location) -> list[str]:
    lines = list(root.state(OF_RECORDS))
    # In a bucket it takes requests to look for the files of a prefix; a root that is a file needs none.
    listed = files_of(root, is_there=root.local is None and lines != [MISSING])
    if listed is not None:
        lines = [f"{file.name}{line}" for file in listed for line in file.state()]
    return lines


def _digest(lines: Iterable[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode(errors="surrogateescape") + b"\n")
    return found.hexdigest()[:32]


def _settings(target: CheckedTarget) -> dict[str, str]:
    parsed = {**asdict(target), **asdict(target.changes), **target.format_options}
    declared = {**OF_EVERY_FORMAT, **format_options()}
    mapped = {} if target.given_map is None else {"map": repr(target.given_map)}
    return {
        "layout": _layout_text(target.layout),
        **mapped,  # left out without one, as places are, so that the keys of earlier versions stay the same
        **{
            name: option.show(parsed[name])
            for name, option in declared.items()
            if option.show and not (option.kind == "place" and parsed[name] is None)
        },
        "max_memory": exact_bytes(target.max_memory),
        "workers": str(target.workers),
        "reshard": __version__,
    }


def _layout_text(layout: Layout | None) -> str:
    if layout is None:
        return "as in the source"
    if isinstance(layout, SameAxes):
        left_out = ", without those it lacks" if layout.missing_axes == "replicate" else ""
        return f"axes as in the source over {_mesh_text(layout.mesh)}{left_out}"
    if isinstance(layout, LayoutFile):
        return str(layout_to_mapping(layout))
    return layout.text if isinstance(layout, LayoutTree) else _map_text(layout)


def _map_text(layouts: LayoutMap) -> str:
    patterns = [
        f"{pattern!r}: {('none' if layout is None else f'{show_axes(layout.axes)} over {_mesh_text(layout.device_mesh)}')}"
        for pattern, layout in layouts.items()
    ]
    return (
        f"{{{', '.join(patterns)}}}, {layouts.dialect}, default {_mesh_text(layouts.device_mesh)}"
    )


def _mesh_text(mesh: DeviceMesh | None) -> str:
    """The mesh with all that is recorded of it; many device ids as a digest."""
    if mesh is None:
        return "no mesh"
    types, ids = mesh.axis_types, mesh.recorded.device_ids
    shown = (
        "" if ids is None else f" on devices {list(ids) if len(ids) <= 16 else _digest([str(ids)])}"
    )
    return f"{mesh}{f' of types {list(types)}' if types else ''}{shown}"


def plan_digest(plan: Plan, target: TargetCheckpoint) -> str:
    """Digest of everything that the files on disk and the tasks' numbers depend on."""
    container = target.container
    form = (target.form, container.style, [i.directory for i in container.items])
    return _digest([repr(form), *map(_fill_text, plan.fills)])


def _fill_text(fill: Fill) -> str:
    target = fill.target
    return repr(
        (
            [repr(piece) for piece in fill.pieces],
            [(s.codec, s.spec.storage.cuts, s.spec.chunk_shape) for s in fill.sources],
            (target.codec, target.spec.storage.cuts, target.spec.chunk_shape),
            (fill.strategy, fill.units.cuts),
        )
    )


def key_left(left: Mapping[str, Any] | None) -> ConversionKey | None:
    """The key of the run that left a transaction; None if there is none, or it cannot be read."""
    try:
        known = ConversionKey(**(left or {}))
        texts = [known.source, known.files, known.plan, *known.settings.values()]
    except (TypeError, AttributeError):
        return None
    return known if all(isinstance(text, str) for text in texts) else None


def differences(before: ConversionKey, now: ConversionKey) -> list[str]:
    """The differences between two conversions, a clause each; none where one can resume the other."""
    if before.source != now.source:
        return [f"the source was {before.source!r} and is {now.source!r}"]
    changed = [] if before.files == now.files else ["the source changed since"]
    is_same_plan = before.plan == now.plan
    # Another mesh may be cut into the same chunks: no byte of them changes, but the options did.
    settings = [
        f"{name} was {_shown(before.settings.get(name))} and is {_shown(now.settings.get(name))}"
        for name in {**now.settings, **before.settings}
        if before.settings.get(name) != now.settings.get(name)
        and not (is_same_plan and name in _OF_THE_RUN)
    ]
    return changed + settings or ([] if is_same_plan else [_OTHER_PLAN])


def _shown(setting: str | None) -> str:
    if setting is None:
        return "unknown"
    return setting if len(setting) <= MAX_SHOWN else f"{setting[:MAX_SHOWN]}…"


def plainly(
    asked: Sequence[Target], limits: Limits
) -> tuple[list[CheckedTarget], list[dict[str, Any]]]:
    """Targets as processes on other hosts know them: checked, and the options of each as plain data.

    PlanError for a layout that no layout file can express.
    """
    as_files = [as_layout_file(one) for one in asked]
    checked = check_targets(as_files, limits)
    return checked, [plain_options(a, c) for a, c in zip(as_files, checked, strict=True)]


def plain_options(asked: Target, checked: CheckedTarget) -> dict[str, Any]:
    """The options of a target as plain data. PlanError for a layout that no layout file can express."""
    layout = _plain_layout(checked.layout)
    given = {name: getattr(asked, name) for name in (*format_options(), *AS_ASKED, "to")}
    of_file = checked.layout.changes if isinstance(checked.layout, LayoutFile) else Changes()
    own = {
        name: list(getattr(checked.changes, name))[len(getattr(of_file, name)) :]
        for name in Changes.__struct_fields__
    }
    mapped = {} if checked.given_map is None else checked.given_map.plain
    plain: dict[str, Any] = json.loads(json.dumps({**given, **layout, **own, **mapped}))
    again = checked_again(checked.target, plain, Limits(checked.max_memory, checked.workers))
    before, after = (key_of_conversion("/", one, "").settings for one in (checked, again))
    if before != after:
        changed = [name for name in after if before[name] != after[name]]
        raise PlanError(
            f"{', '.join(changed)} cannot be recorded for the other parts; give a layout file, or options as plain text and numbers"
        )
    return plain


def _plain_layout(layout: Layout | None) -> dict[str, Any]:
    if layout is None:
        return {}
    if isinstance(layout, LayoutFile):
        return {"layout": layout_to_mapping(layout)}
    if isinstance(layout, SameAxes):
        mesh = layout_to_mapping(LayoutFile(layout.mesh))["mesh"]
        return {"mesh": mesh, "missing_axes": layout.missing_axes}
    raise PlanError(
        "the parts of a conversion share a layout file, but the layout is a tree or a LayoutMap; give the path or the content of "
        "a layout file (layout)"
    )


def as_layout_file(asked: Target) -> Target:
    """The target with the layout file that its LayoutMap stands for, if it has one."""
    if not isinstance(asked.layout, LayoutMap):
        return asked
    options = {name: getattr(asked, name) for name in asked.__struct_fields__}
    return Target(**{**options, "layout": asked.layout.to_mapping()})


def checked_again(path: str, options: Mapping[str, Any], limits: Limits) -> CheckedTarget:
    """The target that plain options mean."""
    given = dict(options)
    if given.get("mesh") is not None:
        given["mesh"] = parse_layout({"mesh": given["mesh"]}).mesh
    return check_target(Target(path, **given), limits)
