"""PartsRequest: the JSON record that all parts of a conversion share, beside each of its targets.

::

    {"format": "reshard.parts", "version": 2, "reshard": "0.1.0", "parts": 16, "source": "…", "unlisted": "leave",
     "computed": {"dequantize": "bfloat16"}, "max_memory": 1073741824, "workers": 8,
     "targets": [{"target": "…", "options": {"layout": {…}, "compression": "none", …}, "identity": {…}}]}

The first part records it; a part or a commit of another conversion is refused, and so is one of another version of this program, of another
state of the source, or on another file system.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, convert, to_builtins

from reshard.arguments import Unlisted
from reshard.conversion.conversion_key import ConversionKey, checked_again, differences
from reshard.conversion.make_plan import JointPlan, TargetPlan
from reshard.conversion.run import Run, start_run
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.errors import MissingError, PlanError, ReshardError, ResumeError
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.storage.location import Location
from reshard.storage.parts import claim_request, parts_request
from reshard.version import __version__

FORMAT = "reshard.parts"
VERSION = 2


class PartsTarget(Struct, frozen=True, rename={"key": "identity"}):
    """One target of the request; ``options`` are those of ``Target`` as plain data."""

    target: str
    options: Mapping[str, Any]
    key: ConversionKey


class PartsRequest(Struct, frozen=True):
    """The conversion that parts do together.

    Attributes:
        parts: their number.
        max_memory, workers: of each part.
        unlisted: as in ``convert``.
        computed: the options that ask for computations of the source, such as ``dequantize``, as plain data.
        reshard: version of the program.
    """

    parts: int
    source: str
    max_memory: int
    workers: int
    targets: tuple[PartsTarget, ...]
    unlisted: Unlisted = "leave"
    computed: Mapping[str, Any] = {}
    reshard: str = __version__

    def render(self) -> bytes:
        """The content of the record."""
        document = {"format": FORMAT, "version": VERSION, **to_builtins(self)}
        return json.dumps(document, sort_keys=True).encode()

    def run(
        self,
        progress: Callable[[Progress], None] | None,
        before_publish: Callable[[str], None] | None = None,
    ) -> Run[Any]:
        """A run of this conversion."""
        limits = Limits(self.max_memory, self.workers)
        targets = [checked_again(one.target, one.options, limits) for one in self.targets]
        chosen = CheckpointPath.at(self.source, self.unlisted)
        if self.computed:
            from reshard.arithmetic.asked import computed

            chosen = computed(chosen, **self.computed)
        return start_run(chosen, targets, progress, before_publish=before_publish)


def request_of(
    run: Run[Any], planned: Sequence[TargetPlan], count: int, options: Sequence[Mapping[str, Any]]
) -> PartsRequest:
    """The request of a run whose targets are planned; ``options``: of each target of the run, as plain data."""
    limits = run.targets[0]
    keys = {each.number: each.key for each in planned}
    targets = tuple(
        PartsTarget(target.target, plain, keys.get(number, run.keys[number]))
        for number, (target, plain) in enumerate(zip(run.targets, options, strict=True))
    )
    made = (count, run.source, limits.max_memory, limits.workers, targets)
    return PartsRequest(*made, run.chosen.unlisted, run.chosen.options)


def claim_parts(ours: PartsRequest, planned: Sequence[TargetPlan]) -> None:
    """Records a request beside each target; ResumeError where parts of another conversion are recorded there."""
    for each in planned:
        recorded = claim_request(each.place, ours.render(), each.target.state)
        refuse_other(parse_request(recorded, str(each.place)), ours, str(each.place))


def refuse_more(count: int, plan: JointPlan) -> None:
    """Raises PlanError for more parts than units of work."""
    if count > (units := plan.total.tasks) > 0:
        raise PlanError(
            f"parts is {count:,}, but the conversion has {units:,} units of work, so that the others would have nothing to do; give at most "
            f"{units:,}"
        )


def recorded_request(place: Location, state: str | None) -> PartsRequest | None:
    """The request beside a target; None where its parts were committed before, and the target is the result.

    Raises MissingError where no part was begun.
    """
    data = parts_request(place, state)
    if data is not None:
        return parse_request(data, str(place))
    with suppress(ReshardError):
        if open_reader(str(place)).conversion:
            return None
    raise MissingError(
        f"no part of a conversion to {place} was begun; do each with `reshard convert SRC {place} … --part i/n`, and commit then"
    )


def parse_request(data: bytes, target: str) -> PartsRequest:
    """The record of the parts of a target; ResumeError where it is damaged, or of another version of this program."""
    try:
        document = json.loads(data)
        if (document.pop("format"), document.pop("version")) == (FORMAT, VERSION):
            found = convert(document, PartsRequest)
            if found.targets:
                return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ResumeError(
        f"the record of the parts of {target!r} is damaged, or of another version of reshard; commit them with that version, or remove "
        "them (reshard clean) and begin again"
    )


def refuse_other(theirs: PartsRequest, ours: PartsRequest, target: str) -> None:
    """Raises ResumeError unless a part belongs to the conversion of the others; of the same version of this program."""
    if theirs.reshard != ours.reshard:
        raise ResumeError(
            f"reshard {ours.reshard} is installed here, but the parts of {target!r} were begun with {theirs.reshard}; install the same version "
            "on every host"
        )
    what = []
    if theirs.parts != ours.parts:
        what.append(f"there were {theirs.parts} parts and are {ours.parts}")
    if [one.target for one in theirs.targets] != [one.target for one in ours.targets]:
        what.append(f"the targets were {_names(theirs.targets)} and are {_names(ours.targets)}")
    else:
        both = [(a.key, b.key) for a, b in zip(theirs.targets, ours.targets, strict=True)]
        # A target that was finished before has no plan.
        planned = [(before, now) for before, now in both if before.plan and now.plan]
        what += dict.fromkeys(text for keys in planned for text in differences(*keys))
    if what:
        raise ResumeError(
            f"the parts of {target!r} that were begun are of another conversion: {'; '.join(what)}; give every part the same source, options, "
            "--max-memory and --workers, or remove what was begun (reshard clean)"
        )


def _names(targets: Sequence[PartsTarget]) -> str:
    return ", ".join(one.target for one in targets)
