"""RestoreRequest: the arguments of a restore, checked and normalised once; and Partitions, those that make ShardedVariables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import changes_of, check_choice, check_missing_chunks
from reshard.engine.limits import Limits, limits_of
from reshard.errors import LayoutError
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import narrowed_by_jax, numpy_dtype
from reshard.layout.changes import Changes
from reshard.layout.layout_map import LayoutMap
from reshard.maps.given_map import GivenMap, map_and_layout
from reshard.restoring.match import require_jax
from reshard.restoring.options import Missing, RestoreArguments, Unexpected
from reshard.restoring.outputs import HostMemory, Shards, default_device
from reshard.restoring.regions import Region
from reshard.restoring.shardings import Shardings, shardings_of
from reshard.restoring.target_tree import (
    TargetLeaf,
    TargetTree,
    check_alone,
    read_into,
    read_target,
)
from reshard.variables.sharded.shards import STRATEGIES, ShardRows
from reshard.variables.sharded.updating import known_partitioner, shard_count

if TYPE_CHECKING:
    import jax

    from reshard.arguments import CastRules, Rules


class RestoreRequest(Struct, frozen=True):
    """The tensors to restore, and their outputs.

    Attributes:
        changes: the select, drop, rename and cast rules, those of a layout file first.
        given_map: the map whose tensors are restored; None where those of the checkpoint are.
        like: the tree of ``like`` or ``into``; None for every tensor, in dicts and lists.
        targets: its leaves by name; none for every tensor.
        shardings: None without a layout and a mesh.
        missing: ``"keep"`` keeps leaves of ``like`` that the checkpoint lacks.
        unexpected: ``"ignore"`` leaves out stored leaves that ``like`` lacks.
    """

    limits: Limits
    changes: Changes
    given_map: GivenMap | None
    like: TargetTree | None
    targets: Mapping[str, TargetLeaf]
    shardings: Shardings | None
    partitions: Partitions
    missing: Missing
    unexpected: Unexpected


def restore_request(
    source: str,
    like: Any,
    layout: Any,
    partition: Any,
    select: Rules | None,
    cast: CastRules | None,
    options: RestoreArguments,
) -> RestoreRequest:
    """The request for these arguments of ``restore``.

    Raises PlanError, LayoutError or TreeError for arguments that make no sense, MissingPackageError if an argument
    needs jax and it is not installed.
    """
    check_choice("missing", options.missing, get_args(Missing))
    check_choice("unexpected", options.unexpected, get_args(Unexpected))
    check_missing_chunks(options.missing_chunks)
    split = {
        "partition": partition,
        "axis": options.axis,
        "partition_strategy": options.partition_strategy,
        "devices": options.devices,
    }
    if options.into is not None:
        check_alone({"like": like, "layout": layout, "mesh": options.mesh, **split})
    if not (like is None and layout is None and options.mesh is None and partition is None):
        require_jax("like, a layout, a mesh and a partition make jax arrays")
    limits = limits_of(options.max_memory, options.workers, source)
    mapped, given_map, target = (options.map, options.sizes, options.reverse), None, None
    if mapped != (None, None, False) or not isinstance(layout, LayoutMap | None):
        given_map, layout = map_and_layout(*mapped, layout)
    shardings, changes = shardings_of(layout, options.mesh, options.missing_axes)
    rules = select, options.drop, options.rename, cast
    if [rule for rule in rules if rule is not None]:
        changes += changes_of(*rules)
    if options.into is not None:
        target = read_into(options.into)
    elif like is not None:
        target = read_target(like)
    partitions = partitions_of(**split)
    return RestoreRequest(
        limits,
        changes,
        given_map,
        target,
        {} if target is None else target.leaves,
        shardings,
        partitions,
        options.missing,
        options.unexpected,
    )


class Partitions(Struct, frozen=True):
    """A ``partition`` argument, with the arguments that belong to it.

    Attributes:
        rules: pairs of pattern and partition; the first pattern found in a name counts.
        for_all: the partition of every array that has the axis; None if there are rules, or no partition.
        strategy: None keeps the recorded one, or 'div' if none was recorded.
        places: dealt to the shards in turn; empty for jax's default device.
    """

    rules: tuple[tuple[re.Pattern[str], Any], ...] = ()
    for_all: Any = None
    axis: int | None = None
    strategy: str | None = None
    places: tuple[jax.sharding.Sharding, ...] = ()

    def partition_of(self, name: str, shape: tuple[int, ...]) -> Any:
        """The partition of a tensor; None for one that stays whole."""
        for pattern, partition in self.rules:
            if pattern.search(name):
                return partition
        has_axis = -len(shape) <= (self.axis or 0) < len(shape)
        return self.for_all if has_axis else None

    def idle(self, names: Sequence[str]) -> list[str]:
        """Patterns that match no name."""
        return [p.pattern for p, _ in self.rules if not any(map(p.search, names))]

    def output(self, name: str, stored: StoredTensor, dtype: str, partition: Any) -> Shards:
        """The shards of a tensor; LayoutError or VariableError, naming it, if it cannot be split that way."""
        shape = stored.spec.shape
        recorded = None if self.strategy == "div" else _mod_axis(stored)
        axis = _axis(name, stored, self.axis, recorded)
        shards = shard_count(partition, shape, numpy_dtype(dtype), axis, name)
        strategy = self.strategy or recorded_strategy(stored) or "div"
        rows = ShardRows.even(shape[axis], shards, strategy)
        held = [rows.of(number) for number in range(shards)]
        split = in_shards(name, shape, dtype, axis, strategy, held, self.places)
        return replace(split, partitioner=known_partitioner(partition))


def in_shards(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    axis: int,
    strategy: str,
    rows: Sequence[range],
    places: Sequence[Any] = (),
) -> Shards:
    """A variable whose shards have ``rows`` along ``axis``; the shards are dealt to ``places`` in turn.

    Without places, shards of a dtype that jax would narrow are numpy.
    """
    regions = tuple(Region.rows(shape, axis, held) for held in rows)
    default = default_device() if narrowed_by_jax(numpy_dtype(dtype)) is None else HostMemory()
    dealt = tuple(
        (places[n % len(places)] if places else None) or default for n in range(len(rows))
    )
    return Shards(name, dtype, axis, strategy, regions, dealt)


def recorded_strategy(stored: StoredTensor) -> str | None:
    """The strategy by which look-ups find the table's rows, 'mod' or 'div'; None if the checkpoint does not record it."""
    found = (stored.partition or {}).get("strategy")
    return found if found in STRATEGIES else None


def _mod_axis(stored: StoredTensor) -> int | None:
    """The axis along which a table was split for 'mod' look-up, counted from the front."""
    axis = (stored.partition or {}).get("axis", 0)
    rank = len(stored.spec.shape)
    is_mod = recorded_strategy(stored) == "mod" and isinstance(axis, int) and rank > 0
    return axis % rank if is_mod else None


def _axis(name: str, stored: StoredTensor, given: int | None, recorded: int | None) -> int:
    """The axis to split, counted from the front; a 'mod' table can only be split along the recorded one."""
    shape = stored.spec.shape
    axis = given if given is not None else recorded or 0
    if not -len(shape) <= axis < len(shape):
        raise LayoutError(
            f"{name!r} of shape {list(shape)} has no axis {axis} to partition; choose another axis, or narrow "
            "the pattern"
        )
    if recorded is not None and axis % len(shape) != recorded:
        raise LayoutError(
            f"{name!r} was saved for 'mod' look-up along axis {recorded}, but axis {axis} would be partitioned, where "
            "look-ups would not find its rows; leave axis out, or pass partition_strategy='div'"
        )
    return axis % len(shape)


def partitions_of(
    partition: Any,
    axis: int | None,
    partition_strategy: str | None,
    devices: Sequence[Any] | None,
) -> Partitions:
    """Partitions from the arguments of a restore; LayoutError for arguments that make no sense."""
    strategy = partition_strategy
    if strategy is not None and strategy not in STRATEGIES:
        raise LayoutError(
            f"partition_strategy is {strategy!r}; expected 'div', 'mod', or None for what was recorded"
        )
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise LayoutError(f"axis is {axis!r}; expected the number of a dimension")
    places = () if devices is None else _places(devices)
    if isinstance(partition, Mapping):
        rules = tuple(_rule(pattern, found) for pattern, found in partition.items())
        return Partitions(rules, None, axis, strategy, places)
    if partition is not None:
        _check_partition(partition, "partition")
    return Partitions((), partition, axis, strategy, places)


def _rule(pattern: Any, partition: Any) -> tuple[re.Pattern[str], Any]:
    _check_partition(partition, f"partition[{pattern!r}]")
    try:
        return re.compile(pattern), partition
    except (re.error, TypeError) as error:
        raise LayoutError(
            f"partition has the key {pattern!r}, which is not a regular expression: {error}"
        ) from None


def _check_partition(partition: Any, what: str) -> None:
    is_count = isinstance(partition, int) and not isinstance(partition, bool) and partition >= 1
    if not is_count and not callable(partition):
        raise LayoutError(
            f"{what} is {partition!r}; expected a number of shards of at least 1, a partitioner such as "
            "FixedShardsPartitioner(4), or a mapping from regular expressions to these"
        )


def _places(devices: Sequence[Any]) -> tuple[jax.sharding.Sharding, ...]:
    import jax

    found = tuple(devices)
    if not found or not all(isinstance(d, jax.Device | jax.sharding.Sharding) for d in found):
        raise LayoutError(
            f"devices is {devices!r}; expected jax devices or shardings, at least one, to deal shards to"
        )
    return tuple(
        d if isinstance(d, jax.sharding.Sharding) else jax.sharding.SingleDeviceSharding(d)
        for d in found
    )
