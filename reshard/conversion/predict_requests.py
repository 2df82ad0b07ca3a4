"""Plans the requests of a conversion from or to buckets: those that its opening made, and those that are still to come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
from reshard.conversion.prepare import Planned, local_paths, plan_targets, plan_unnamed
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.planning.request_plan import RequestPlan
from reshard.storage.buckets.counts import so_far
from reshard.storage.requests import NONE, Requests
from reshard.storage.target import traits_at

_FOUND = Requests(head=1, list=1)
"""Looking whether something is at the name of a target, which a run does once more than its plan."""


def plan_all(
    chosen: CheckpointPath, targets: Sequence[CheckedTarget], hosts: int = 1
) -> MultiConversionPlan:
    """What a conversion to ``targets`` on so many hosts will do; raises what can be refused before a byte moves."""
    source, targets = local_paths(chosen.path, targets)
    planned = plan_targets(replace(chosen, path=source), targets, by_hosts=hosts > 1)
    in_buckets = sum(_is_asked(target.target) for target in targets)
    requests = plan_requests(planned, targets, chosen, _FOUND * in_buckets)
    return with_requests(planned.summary, requests)


def plan_without_target(
    chosen: CheckpointPath, target: CheckedTarget, hosts: int = 1
) -> ConversionPlan:
    """The plan of a conversion on so many hosts whose target has no name yet."""
    planned = plan_unnamed(chosen, target.options, by_hosts=hosts > 1)
    requests = plan_requests(planned, [target], chosen)
    return with_requests(planned.summary, requests).plans[0]


def with_requests(
    summary: MultiConversionPlan, requests: RequestPlan | None
) -> MultiConversionPlan:
    """The plan with its requests, which are those of its target, too, if there is only one."""
    plans = summary.plans
    if len(plans) == 1:
        plans = (replace(plans[0], requests=requests),)
    return replace(summary, plans=plans, requests=requests)


def plan_requests(
    planned: Planned,
    targets: Sequence[CheckedTarget],
    chosen: CheckpointPath,
    more: Requests = NONE,
    finished: Collection[int] = (),
) -> RequestPlan | None:
    """What a conversion will ask of buckets; None where neither its source nor a target is in one.

    Opening the source and looking at the targets was done already, so that it is counted and not estimated.

    Args:
        more: what the conversion will do besides before its plan.
        finished: numbers of targets that are there already.
    """
    left = {n: target for n, target in enumerate(targets) if n not in finished}
    in_buckets = {n: target for n, target in left.items() if _is_asked(target.target)}
    if not in_buckets and not _is_asked(planned.summary.source):
        return None
    from reshard.conversion.request_facts import of_source, of_target, source_tensors

    tensors = source_tensors(planned)
    parts = [of_target(planned, n, target, tensors) for n, target in in_buckets.items()]
    if chosen.root.traits.by_requests:
        parts.append(of_source(planned, left, tensors, chosen.root))
    looked = so_far() - chosen.before + more
    gets = Requests(get=looked.get, received_bytes=looked.received_bytes)
    parts.append(RequestPlan(looked - gets, gets))
    return RequestPlan(
        sum((part.steps for part in parts), NONE),
        sum((part.metadata for part in parts), NONE),
        sum((part.data for part in parts), NONE),
        planned.summary.total.workers,
        len(in_buckets),
        _segment_deletes(in_buckets.values()),
    )


def _is_asked(place: str) -> bool:
    return traits_at(place).by_requests


def _segment_deletes(targets: Iterable[CheckedTarget]) -> int:
    """Requests that remove one segment of records: Google Cloud deletes objects one by one."""
    return int(any(target.target.startswith("gs://") for target in targets))
