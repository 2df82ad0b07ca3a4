"""OpenedCheckpoint: a checkpoint that is opened once, and restored or streamed in any number of calls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from reshard.arguments import MissingChunks, changes_of, check_missing_chunks, takes_options
from reshard.engine.limits import limits_of
from reshard.errors import MissingChunksWarning, MissingError, StorageError, TreeError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.known_formats import files_of
from reshard.formats.lacks import filled_warning, read_as
from reshard.formats.registry import find_checkpoint
from reshard.identity.identity_file import how_to_record, read_identity
from reshard.identity.slice_proof import SliceProof, needs_elements, prove_slice
from reshard.identity.weights_identity import WeightsIdentity, check_identity_of
from reshard.layout.changes import full_name
from reshard.log import warn_caller
from reshard.planning.rules import Rewrite, rewrites
from reshard.restoring.options import RestoreArguments
from reshard.restoring.request import restore_request
from reshard.restoring.restore import restore_checkpoint
from reshard.storage.location import Location, stamp
from reshard.streaming.shard_stream import ShardStream, shard_parts
from reshard.streaming.tensor_stream import TensorStream, slice_box

if TYPE_CHECKING:
    from reshard.arguments import CastRules, DTypeLike, PairRules, Rules
    from reshard.conversion.options import LayoutLike
    from reshard.formats.registry import CheckpointPath
    from reshard.geometry.grid import Box
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.tensor_spec import TensorSpec
    from reshard.restoring.options import RestoreOptions

Tree = TypeVar("Tree")


class OpenedCheckpoint:
    """A checkpoint whose metadata was read, and whose tensors can be restored later.

    Made by ``reshard.open_checkpoint``. It keeps no file open; its folder must not change.

    Attributes:
        path: the given path.
    """

    def __init__(self, chosen: CheckpointPath) -> None:
        self.path = chosen.path
        self._root = chosen.root
        found = find_checkpoint(chosen)
        self._is_several = bool(found.mark.files)
        # Taken before reading, so that later changes are noticed.
        self._stamp = self._current_stamp()
        self._reader: Reader = found.open()

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Shape, dtype, chunks and layout of every tensor, by name."""
        return MappingProxyType({n: t.spec for n, t in self._reader.tensors.items()})

    @overload
    def restore(
        self,
        like: Tree,
        layout: Any = None,
        partition: Any = None,
        select: Rules | None = None,
        cast: CastRules | None = None,
        **options: Unpack[RestoreOptions],
    ) -> Tree: ...
    @overload
    def restore(
        self,
        like: None = None,
        layout: Any = None,
        partition: Any = None,
        select: Rules | None = None,
        cast: CastRules | None = None,
        **options: Unpack[RestoreOptions],
    ) -> Any: ...
    @takes_options(RestoreArguments)
    def restore(
        self,
        like: Any = None,
        layout: Any = None,
        partition: Any = None,
        select: Rules | None = None,
        cast: CastRules | None = None,
        **options: Unpack[RestoreOptions],
    ) -> Any:
        """Restores the tensors, as ``reshard.restore`` with the same arguments.

        Raises StorageError if another checkpoint replaced this one since it was opened, also during the
        restore.
        """
        arguments = RestoreArguments(**options)
        request = restore_request(self.path, like, layout, partition, select, cast, arguments)
        return restore_checkpoint(self._reader, request, arguments, self._check_unchanged)

    def stream(
        self,
        name: str,
        box: Box | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        missing_chunks: MissingChunks | None = None,
        max_memory: int | str | None = None,
    ) -> TensorStream:
        """A box of a tensor as row-major little-endian bytes, which are read on demand.

        >>> stream = opened.stream("params/kernel", "0:128,:", "bfloat16")  # doctest: +SKIP
        >>> stream.nbytes, b"".join(stream)  # doctest: +SKIP

        Args:
            name: of a tensor of this checkpoint.
            box: ``"0:128,:"``, or a box; None for the whole tensor.
            dtype: the dtype to cast to, by the rules of ``convert``: a name, or a dtype of numpy or jax. None for the stored
                one.
            missing_chunks: as for ``restore``; the stream counts chunks that it fills in ``missing_chunks``.
            max_memory: bytes, or text such as ``"64MiB"``, of all buffers; the default is that of ``restore``.

        Raises TreeError if there is no such tensor, LayoutError for a box outside of it, PlanError for a cast that is not
        possible, MemoryBudgetError if the budget is too small.
        """
        stored = self._stored(name)
        self._check_unchanged()
        cast = Rewrite(name, name) if dtype is None else _cast(stored, dtype)
        stream = TensorStream(
            self._read_as(missing_chunks),
            stored,
            slice_box(name, stored.spec.shape, box),
            cast.dtype or stored.spec.dtype,
            limits_of(max_memory, None).max_memory,
            saturate=cast.saturate,
        )
        self._warn(stream, f"the stream of {name!r}", missing_chunks)
        return stream

    def stream_shard(
        self,
        shard: int,
        layout: LayoutLike = None,
        *,
        mesh: str | MeshLike | None = None,
        select: Rules = (),
        drop: Rules = (),
        rename: PairRules = (),
        cast: CastRules = (),
        missing_chunks: MissingChunks | None = None,
        max_memory: int | str | None = None,
    ) -> ShardStream:
        """The slices of all tensors that one device of a layout holds, as one safetensors file.

        Args:
            shard: the number of the device, in the mesh's row-major order; for tensors that are split by count or
                size, the number of the part.
            layout, mesh, select, drop, rename, cast: as in ``reshard.ConvertOptions``.
            missing_chunks, max_memory: as for ``stream``.

        Raises the errors of ``plan`` for this layout; LayoutError if there is no such shard or two tensors would have the
        same name; PlanError for a dtype that safetensors does not have.
        """
        from reshard.layout.read_layout import given_layout
        from reshard.planning.target_layouts import layout_of

        self._check_unchanged()
        found = layout_of(given_layout(layout), mesh)
        parts = shard_parts(self._reader, found, changes_of(select, drop, rename, cast), shard)
        reader = self._read_as(missing_chunks)
        stream = ShardStream(reader, parts, limits_of(max_memory, None).max_memory)
        self._warn(stream, f"the stream of shard {shard}", missing_chunks)
        return stream

    @cached_property
    def identity(self) -> WeightsIdentity | None:
        """The identity that the checkpoint records, without ``nodes``; None if it records none, in another folder, or of computed tensors.

        It is no evidence by itself: ``docs/reference/identity.md``. Raises CorruptError if it is damaged, or does not fit the
        tensors.
        """
        is_computed = self._reader.chunks.origin is not self._reader.chunks
        found = None if is_computed else read_identity(self._place)
        if found is not None:
            check_identity_of(self._reader, found)
        return found

    @cached_property
    def _place(self) -> Location:
        """The folder; links that lead out of it are refused, since files of an identity may come from strangers."""
        return self._root.view()

    def needs_elements(
        self, name: str, box: Box | str | None = None, *, max_memory: int | str | None = None
    ) -> bool:
        """True if ``prove_slice`` reads elements of the tensor for the proof of this slice; arguments and errors as there."""
        stored = self._stored(name)
        wanted = slice_box(name, stored.spec.shape, box)
        return needs_elements(stored, wanted, limits_of(max_memory, None).max_memory)

    def prove_slice(
        self,
        name: str,
        box: Box | str | None = None,
        *,
        max_memory: int | str | None = None,
    ) -> SliceProof:
        """The proof that a slice is part of the checkpoint's identity; it takes one hash for each step down the tree, or a few.

        Args:
            name: of a tensor of this checkpoint.
            box: as for ``stream``; it may not cut tiles of the identity.
            max_memory: as for ``stream``.

        Raises MissingError if the checkpoint records no identity; LayoutError for a slice that cuts tiles, naming the smallest slice
        around it that does not; CorruptError if files of the identity are damaged, or the elements differ from its record.
        """
        stored = self._stored(name)
        self._check_unchanged()
        if self.identity is None:
            raise MissingError(
                f"{self.path} records no identity, so that there is nothing to prove; {how_to_record(self.path)}"
            )
        wanted = slice_box(name, stored.spec.shape, box)
        limit = limits_of(max_memory, None).max_memory
        return prove_slice(self._reader, self._place, self.identity, name, wanted, limit)

    def _read_as(self, asked: MissingChunks | None) -> Reader:
        check_missing_chunks(asked)
        return read_as(self._reader, asked)

    def _warn(
        self, stream: TensorStream | ShardStream, what: str, asked: MissingChunks | None
    ) -> None:
        if stream.missing_chunks and asked != "allow":
            sentence = filled_warning(self.path, what, stream.missing_chunks)
            warn_caller([sentence], MissingChunksWarning)

    def _stored(self, name: str) -> StoredTensor:
        stored = self._reader.tensors.get(name)
        if stored is None:
            some = ", ".join(itertools.islice(self._reader.tensors, 5))
            more = ", …" if len(self._reader.tensors) > 5 else ""
            raise TreeError(
                f"{self.path} has no tensor {name!r}; it has {len(self._reader.tensors)} ({some}{more})"
            )
        return stored

    def _check_unchanged(self) -> None:
        found = self._current_stamp()
        if found is None:
            raise StorageError(
                f"{self.path} is not there any more; it must stay until everything is restored"
            )
        if found != self._stamp:
            raise StorageError(
                f"{self.path} is not the checkpoint that was opened: another was put in its place, or it was "
                "changed; open it again"
            )

    def _current_stamp(self) -> tuple[object, ...] | None:
        """A value that changes when another checkpoint replaces a local one; None if nothing is there."""
        files = files_of(self._root) if self._is_several and self._root.local else None
        return stamp(self._root) if files is None else tuple(map(stamp, files))


def _cast(stored: StoredTensor, asked: DTypeLike) -> Rewrite:
    """The cast of one tensor; PlanError for a cast that makes no sense."""
    spec, dtype = stored.spec, full_name(asked)
    pattern = f"^{re.escape(spec.name)}$"
    keys = [spec.name] if stored.is_key and dtype != spec.dtype else []
    changes = changes_of((), (), (), [(pattern, dtype)])
    (rewrite,) = rewrites(changes, [spec.name], {spec.name: spec}, keys)
    return rewrite
