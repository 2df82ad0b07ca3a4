"""RestoreRequest: the arguments of a restore, checked and normalised once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from reshard.arguments import changes_of, check_choice, check_missing_chunks
from reshard.engine.limits import Limits, limits_of
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap, map_and_layout
from reshard.restoring.match import require_jax
from reshard.restoring.options import Missing, RestoreArguments, Unexpected
from reshard.restoring.partitions import Partitions, partitions_of
from reshard.restoring.shardings import Shardings, shardings_of
from reshard.restoring.target_tree import TargetTree, check_alone, read_into, read_target

if TYPE_CHECKING:
    from reshard.arguments import CastRules, Rules


class RestoreRequest(Struct, frozen=True):
    """The tensors to restore, and their outputs.

    Attributes:
        changes: the select, drop, rename and cast rules, those of a layout file first.
        given_map: the map whose tensors are restored; None where those of the checkpoint are.
        like: the leaves of ``like`` or ``into``; None for every tensor, in dicts and lists.
        shardings: None without a layout and a mesh.
        missing: ``"keep"`` keeps leaves of ``like`` that the checkpoint lacks.
        unexpected: ``"ignore"`` leaves out stored leaves that ``like`` lacks.
    """

    limits: Limits
    changes: Changes
    given_map: GivenMap | None
    like: TargetTree | None
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
    check_alone(
        options.into,
        {
            "like": like,
            "layout": layout,
            "mesh": options.mesh,
            "partition": partition,
            "axis": options.axis,
            "partition_strategy": options.partition_strategy,
            "devices": options.devices,
        },
    )
    if not all(made is None for made in (like, layout, options.mesh, partition)):
        require_jax("like, a layout, a mesh and a partition make jax arrays")
    limits = limits_of(options.max_memory, options.workers, source)
    given_map, layout = map_and_layout(options.map, options.sizes, options.reverse, layout)
    shardings, changes = shardings_of(layout, options.mesh, options.missing_axes)
    return RestoreRequest(
        limits,
        changes + changes_of(select, options.drop, options.rename, cast),
        given_map,
        _target_tree(like, options.into),
        shardings,
        partitions_of(partition, options.axis, options.partition_strategy, options.devices),
        options.missing,
        options.unexpected,
    )


def _target_tree(like: Any, into: Any) -> TargetTree | None:
    if into is not None:
        return read_into(into)
    return None if like is None else read_target(like)
