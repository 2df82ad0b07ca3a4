"""The options of ``restore``, declared once: RestoreOptions, and RestoreArguments, which records them.

``reshard.restore`` and ``OpenedCheckpoint.restore`` take ``**options: Unpack[RestoreOptions]``. A new option is a key of
RestoreOptions with its documentation, and a field of RestoreArguments with its default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import Struct

from reshard.arguments import OptionsMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reshard.arguments import MapLike, MissingChunks, PairRules, Rules
    from reshard.engine.progress import Progress
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import MissingAxes
    from reshard.restoring.restore import RestoreReport

Missing = Literal["error", "keep"]
Unexpected = Literal["error", "ignore"]


class RestoreOptions(TypedDict, total=False):
    """The options of ``reshard.restore`` besides ``like``, ``layout``, ``partition``, ``select`` and ``cast``.

    Every option can be left out.

    Attributes:
        drop: patterns that are searched in names; tensors that one of them finds are left out, after ``select``.
        rename: pairs of a pattern and a replacement, or a mapping; the first that matches counts.
        map: as in ``reshard.ConvertOptions``: the names, shapes and dtypes that are restored are those that the map makes. ``select``
            and ``drop`` search names of the checkpoint; ``rename``, ``cast``, the layout and ``like`` have the map's.
        sizes: of dimensions of the map that no shape tells, by name.
        reverse: read the map from right to left.
        mesh: as in ``reshard.ConvertOptions``: a mesh without a layout keeps the axes by which each tensor was split, over
            this mesh and its devices; the mesh of a layout file, or of a tree of PartitionSpecs, is this one.
        missing_axes: for axes that ``mesh`` lacks: ``"replicate"`` replicates the dimensions that they split; ``"error"``, the
            default, refuses them.
        axis: the dimension that ``partition`` splits; the default is 0, or the recorded one.
        partition_strategy: ``"div"`` or ``"mod"``; None keeps what was recorded, or ``"div"``.
        devices: devices or shardings to which shards are dealt in turn.
        into: a tree of writable numpy arrays, or a dict of them by name, to be filled in place instead of new arrays;
            the same tree is returned. Shapes and dtypes must fit as for ``like``. It excludes ``like``, ``layout``, ``mesh``,
            ``partition`` and the options for these. After an error the arrays may have new and old values.
        missing: ``"keep"`` keeps leaves of ``like`` or ``into`` that the checkpoint lacks, or for which it has None or an
            empty container; ``"error"``, the default, refuses them.
        unexpected: ``"ignore"`` leaves out stored leaves that ``like`` or ``into`` lacks; ``"error"``, the default,
            refuses them.
        missing_chunks: treatment of chunks of the tensors that are not stored. ``"refuse"`` raises CorruptError before anything is
            read; ``"warn"`` and ``"allow"`` take the fill value, mostly 0, with or without a warning. None, the default,
            refuses a needed chunk where the checkpoint records that it stores every chunk, and else warns.
        max_memory: bytes, or text such as ``"512MiB"``, that may be used beside the result. The default is 1 GiB, or a
            quarter of the memory that the machine or its cgroup allows, if that is less.
        workers: number of chunks that are read at once; the default is the number of processors, at least 2 and at most 16.
        verify: compare tensors that are read whole with their recorded digests; the default is True.
        progress: called after each piece of work, from the calling thread.
        report: called once at the end with a ``RestoreReport``. Without it, keys
            and rules that match no tensor raise a ``LayoutWarning``, and missing chunks a ``MissingChunksWarning``.
    """

    drop: Rules | None
    rename: PairRules | None
    map: MapLike
    sizes: Mapping[str, int] | None
    reverse: bool
    mesh: str | MeshLike | None
    missing_axes: MissingAxes
    axis: int | None
    partition_strategy: str | None
    devices: Sequence[Any] | None
    into: Any
    missing: Missing
    unexpected: Unexpected
    missing_chunks: MissingChunks | None
    max_memory: int | str | None
    workers: int | None
    verify: bool
    progress: Callable[[Progress], None] | None
    report: Callable[[RestoreReport], None] | None


class RestoreArguments(Struct, frozen=True, kw_only=True, metaclass=OptionsMeta):
    """The options of one restore, with the defaults of those that were left out."""

    drop: Rules | None = None
    rename: PairRules | None = None
    map: MapLike = None
    sizes: Mapping[str, int] | None = None
    reverse: bool = False
    mesh: str | MeshLike | None = None
    missing_axes: MissingAxes = "error"
    axis: int | None = None
    partition_strategy: str | None = None
    devices: Sequence[Any] | None = None
    into: Any = None
    missing: Missing = "error"
    unexpected: Unexpected = "error"
    missing_chunks: MissingChunks | None = None
    max_memory: int | str | None = None
    workers: int | None = None
    verify: bool = True
    progress: Callable[[Progress], None] | None = None
    report: Callable[[RestoreReport], None] | None = None
