"""ConversionKey: a source, its state, and the options of its conversion. A run resumes only a run of the same key.

The state of the source is the name, size and time of change of every file in it, in a bucket the name and version:
nothing else shows that a checkpoint was written anew, short of reading it. slices.json and the files of an identity do not
count, since recording digests or signing does not change a checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from reshard.arguments import Unlisted
from reshard.conversion.check_target import CheckedOptions
from reshard.conversion.declared_options import OF_EVERY_FORMAT
from reshard.formats.base import TargetCheckpoint
from reshard.formats.known_formats import files_of, format_options
from reshard.formats.names import OF_RECORDS
from reshard.geometry.sizes import exact_bytes
from reshard.layout.axes import show_axes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile, layout_to_mapping
from reshard.layout.layout_map import LayoutMap
from reshard.planning.plans import Fill, Plan
from reshard.planning.target_layouts import Layout, LayoutTree, SameAxes
from reshard.storage.location import MISSING, Location, locate, real_text
from reshard.version import __version__

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
    options: CheckedOptions,
    files: str | None = None,
    unlisted: Unlisted = "leave",
    deltas: Sequence[Location] = (),
    version: str | None = None,
) -> ConversionKey:
    """The key of converting the present ``source`` (``files``: its state), with ``deltas`` over it; not planned yet.

    ``version``: the version in the target's name, which the target records.
    """
    state = source_state(locate(source)) if files is None else files
    settings = _settings(options)
    # Defaults are left out, so that the keys of earlier versions stay the same.
    if unlisted != "leave":
        settings["unlisted"] = unlisted
    if deltas:
        settings["deltas"] = ", ".join(map(real_text, deltas))
    if version is not None:
        settings["version"] = str(int(version))
    return ConversionKey(real_text(locate(source)), state, settings)


def source_state(root: Location, deltas: Sequence[Location] = ()) -> str:
    """Digest of the state of a checkpoint's files, 32 hex digits: locally name, size and time of change (ns), in a bucket the
    version.

    The files are all that are below a folder, a file by itself, or those that a prefix stands for.

    A missing file counts as missing here; reading it is an error. Raises StorageError where the system refuses
    to list a folder: a state that is only half known would be another one the next time.
    """
    lines = list(root.state(OF_RECORDS))
    # In a bucket it takes requests to look for the files of a prefix; a root that is a file needs none.
    listed = files_of(root, is_there=root.local is None and lines != [MISSING])
    if listed is not None:
        lines = [f"{file.name}{line}" for file in listed for line in file.state()]
    return _digest(itertools.chain(lines, (line for each in deltas for line in each.state())))


def _digest(lines: Iterable[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode(errors="surrogateescape") + b"\n")
    return found.hexdigest()[:32]


def _settings(options: CheckedOptions) -> dict[str, str]:
    parsed = {**asdict(options), **asdict(options.changes), **options.format_options}
    declared = {**OF_EVERY_FORMAT, **format_options()}
    mapped = {} if options.given_map is None else {"map": repr(options.given_map)}
    return {
        "layout": _layout_text(options.layout),
        **mapped,  # left out without one, as places are, so that the keys of earlier versions stay the same
        **{
            name: option.show(parsed[name])
            for name, option in declared.items()
            if option.show and not (option.kind == "place" and parsed[name] is None)
        },
        "max_memory": exact_bytes(options.max_memory),
        "workers": str(options.workers),
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
