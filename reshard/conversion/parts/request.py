"""Scope: the share of a conversion that a run does. PartsRequest: the JSON record that all parts share and ``commit`` reads.

::

    {"format": "reshard.parts", "version": 1, "parts": 16, "source": "…", "max_memory": 1073741824, "workers": 8,
     "identity": {…}, "options": {"layout": {…}, "compression": "none", …}}

The first part records it; a part or a commit that comes to another key is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.conversion.check_target import AS_ASKED, CheckedTarget, check_target
from reshard.conversion.options import Target
from reshard.conversion.resume.conversion_key import ConversionKey, differences, key_of_conversion
from reshard.conversion.resume.journal import key_left
from reshard.conversion.target_job import TargetJob
from reshard.engine.limits import Limits
from reshard.errors import PlanError, ResumeError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.format_options import format_options
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile, layout_to_mapping
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import parse_layout
from reshard.planning.target_layouts import Layout, SameAxes
from reshard.storage.parts import Part, claim_request, refuse_replacing

FORMAT = "reshard.parts"
VERSION = 1


class PartsRequest(Struct, frozen=True, rename={"key": "identity"}):
    """The conversion that parts do together.

    Attributes:
        parts: their number.
        options: of ``Target``, as plain data.
        unlisted: as in ``convert``.
    """

    parts: int
    source: str
    max_memory: int
    workers: int
    key: ConversionKey
    options: Mapping[str, Any]
    unlisted: Unlisted = "leave"

    def render(self) -> bytes:
        """The content of the record."""
        document = {"format": FORMAT, "version": VERSION, **to_builtins(self)}
        return json.dumps(document, sort_keys=True).encode()

    def target(self, path: str) -> CheckedTarget:
        """The target with its options."""
        return checked_again(path, self.options, Limits(self.max_memory, self.workers))


class Scope(Struct, frozen=True):
    """The share of a conversion that a run does: all of it, part i of n, or the commit of n parts.

    Attributes:
        part: the part that this run does; None for all of the conversion, and for a commit.
        options: of a part: the options of the target as plain data, as every part must give them.
        agreed: of a commit: the record that its parts share.
    """

    part: Part | None = None
    options: Mapping[str, Any] = {}
    agreed: PartsRequest | None = None

    @property
    def is_whole(self) -> bool:
        """True if no other run does a part of the conversion."""
        return self.part is None and self.agreed is None

    @property
    def is_commit(self) -> bool:
        """True if it publishes the work of parts."""
        return self.agreed is not None


WHOLE = Scope()
"""All of a conversion."""


def parse_request(data: bytes, target: str) -> PartsRequest:
    """The record of the parts of a target; ResumeError where it is damaged, or of another version of this program."""
    try:
        document = json.loads(data)
        known = (document.pop("format"), document.pop("version")) == (FORMAT, VERSION)
        key = key_left(document.pop("identity"))
        if known and key is not None:
            found = PartsRequest(key=key, **document)
            if all(type(n) is int for n in (found.parts, found.max_memory, found.workers)):
                return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ResumeError(
        f"the record of the parts of {target!r} is damaged, or of another version of reshard; commit them with that version, or remove "
        "them (reshard clean) and begin again"
    )


def plain_options(asked: Target, checked: CheckedTarget) -> dict[str, Any]:
    """The options of a target as plain data. PlanError for a layout that no layout file can express."""
    options = checked.options
    layout = _plain_layout(options.layout)
    given = {name: getattr(asked, name) for name in (*format_options(), *AS_ASKED, "to")}
    of_file = options.layout.changes if isinstance(options.layout, LayoutFile) else Changes()
    own = {
        name: list(getattr(options.changes, name))[len(getattr(of_file, name)) :]
        for name in Changes.__struct_fields__
    }
    mapped = {} if options.given_map is None else options.given_map.plain
    plain: dict[str, Any] = json.loads(json.dumps({**given, **layout, **own, **mapped}))
    again = checked_again(checked.target, plain, Limits(options.max_memory, options.workers))
    before, after = (key_of_conversion("/", one.options, "").settings for one in (checked, again))
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


def refuse_overwriting(target: CheckedTarget) -> None:
    """Raises PlanError for parts that would overwrite a target in a bucket."""
    if target.options.overwrite:
        refuse_replacing(target.target)


def check_same_request(scope: Scope, job: TargetJob, chosen: CheckpointPath) -> None:
    """Makes sure that a part, or a commit, belongs to the conversion of the other parts; the first part records it.

    Raises ResumeError where it is of another source, other options or another plan.
    """
    place, options = str(job.place), job.options
    if scope.agreed is not None:
        _refuse_other(scope.agreed, replace(scope.agreed, key=job.key), place)
    if scope.part is not None:
        ours = PartsRequest(
            scope.part.count,
            chosen.path,
            options.max_memory,
            options.workers,
            job.key,
            scope.options,
            chosen.unlisted,
        )
        recorded = claim_request(job.place, ours.render(), options.state)
        _refuse_other(parse_request(recorded, place), ours, place)


def _refuse_other(theirs: PartsRequest, ours: PartsRequest, target: str) -> None:
    """Raises ResumeError unless a part belongs to the conversion of the others."""
    what = differences(theirs.key, ours.key)
    if theirs.parts != ours.parts:
        what = [f"there were {theirs.parts} parts and are {ours.parts}", *what]
    if what:
        raise ResumeError(
            f"the parts of {target!r} that were begun are of another conversion: {'; '.join(what)}; give every part the same source, options, "
            "--max-memory and --workers, or remove what was begun (reshard clean)"
        )
