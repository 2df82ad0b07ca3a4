"""Plans the requests of a conversion from or to buckets: those that its opening made, and those that are still to come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
from reshard.conversion.predict_target_requests import RequestParts, target_requests, way_of
from reshard.conversion.prepare import Planned, local_paths, plan_targets, plan_unnamed
from reshard.formats.base import Reader
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.planning.move import Move
from reshard.planning.predict_source_requests import (
    Blocks,
    WeightedSum,
    chunk_requests,
    some_chunks,
    source_requests,
)
from reshard.planning.request_plan import RequestPlan
from reshard.storage.buckets.counts import so_far
from reshard.storage.buckets.listing import BYTES_PER_OBJECT
from reshard.storage.location import is_in_bucket
from reshard.storage.requests import NONE, Requests, pages

_FOUND = Requests(head=1, list=1)
"""Looking whether something is at the name of a target, which a run does once more than its plan."""


def plan_all(
    chosen: CheckpointPath, targets: Sequence[CheckedTarget], hosts: int = 1
) -> MultiConversionPlan:
    """What a conversion to ``targets`` on so many hosts will do; raises what can be refused before a byte moves."""
    source, targets = local_paths(chosen.path, targets)
    planned = plan_targets(replace(chosen, path=source), targets, by_hosts=hosts > 1)
    in_buckets = sum(is_in_bucket(target.target) for target in targets)
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
    in_buckets = {n: target for n, target in left.items() if is_in_bucket(target.target)}
    if not in_buckets and not is_in_bucket(planned.summary.source):
        return None
    parts = [_of_source(planned, left, chosen)]
    parts += [target_requests(planned, number, target) for number, target in in_buckets.items()]
    looked = so_far() - chosen.before + more
    gets = Requests(get=looked.get, received_bytes=looked.received_bytes)
    return RequestPlan(
        sum((part.steps for part in parts), looked - gets),
        sum((part.metadata for part in parts), gets),
        sum((part.data for part in parts), NONE),
        planned.summary.total.workers,
        len(in_buckets),
        int(any(target.target.startswith("gs://") for target in in_buckets.values())),
    )


def _of_source(
    planned: Planned, targets: Mapping[int, CheckedTarget], chosen: CheckpointPath
) -> RequestParts:
    """Reading its chunks, and listing it again at the end for each target."""
    reader, total, root = planned.reader, planned.summary.total, chosen.root
    if not is_in_bucket(str(root)):
        return RequestParts()
    data = NONE
    for read in total.reads:
        left = [at for at in read if at.target in targets]
        if left:
            moves, those = map(total.move, left), [targets[at.target] for at in left]
            data += _read(list(moves), those, reader, root.traits.range_bytes)
    objects = root.view().traits.memory_bytes // BYTES_PER_OBJECT
    again = Requests(list=pages(objects), head=int(root.is_file()))
    return RequestParts(again * len(targets), data=data)


def _read(
    moves: Sequence[Move], targets: Sequence[CheckedTarget], reader: Reader, range_bytes: int
) -> Requests:
    """What one read of a tensor takes, for all targets that share it; chunks that are copied encoded are read again for
    digests, where something asks for them."""
    move = moves[0]
    source = reader.tensors[move.placement.source]
    blocks = Blocks.of(source.encoding, range_bytes)
    if move.strategy != "copy":
        return source_requests(move, source.encoding, reader.locate, blocks)
    is_unseen = bool(source.digest) and not source.encoding.checksum
    again = sum(is_unseen + (target.options.check == "readback") for target in targets)
    total = WeightedSum()
    for extent, weight in some_chunks(move, reader.locate):
        if extent is None or extent.inline is not None:
            continue
        ways = [
            way_of(extent, move, reader, one.target, is_alone=len(targets) == 1) for one in targets
        ]
        times = sum(way == "parts" for way in ways) if "parts" in ways else "whole" in ways
        total.add(chunk_requests(extent, blocks) * (times + again), weight)
    return total.requests
