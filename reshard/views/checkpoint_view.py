"""CheckpointView: a target that exists only as a rule. Its files are known before a byte of a tensor is read.

A view is planned like the target of a conversion, to the map of its files. Headers, indices and metadata are made at once, in a
temporary folder; what lies between them is read from the source when it is asked for::

    model-00001-of-00002.safetensors    header | a tensor | a tensor | …      ← results.py reads the source
    model.safetensors.index.json        made when the view is planned
    config.json                         copied then
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey, key_of_conversion, source_state
from reshard.conversion.identity import carried_identity, decide, identity_files
from reshard.conversion.make_plan import open_contents
from reshard.errors import PlanError, SourceChangedError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import codec_name
from reshard.formats.file_map import ChunkChecksum, FileMap, SharedFile
from reshard.formats.names import OF_RECORDS
from reshard.formats.registry import CheckpointPath
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.geometry.grid import Box, Grid, Index
from reshard.storage.local.own_folder import own_folder
from reshard.storage.location import Location, locate
from reshard.views.results import Pins, Results
from reshard.views.view_file import Segment, ViewFile


class CheckpointView:
    """The files that a conversion would write, which are read without being written.

    Made by ``reshard.open_view``. It can be read from any thread, until ``close``.

    Attributes:
        source: the path of the checkpoint.
        key: of the conversion.
        content: of the target.
        digests: CRC-64/NVME of the tensors that the source or ``record`` recorded, by name.
        revision: 40 hex digits. Another state of the source or other options give another revision; the same means the same bytes.
        files: by path, sorted.
        identity: the root of the weights, if the source records an identity and every tensor keeps its bits; else None.
        warnings: facts that a person should know, one sentence each.
    """

    def __init__(self, chosen: CheckpointPath, target: CheckedTarget) -> None:
        chosen = replace(chosen, path=str(chosen.root))
        key = _key(chosen, target)
        self.revision = _revision(key, chosen, target)
        found = open_contents(chosen, [target])
        (content,) = found.contents
        checkpoint = replace(content.checkpoint, conversion=key.output)
        _refuse_encoded(checkpoint)
        self.source = chosen.path
        self.key = key
        self.content = replace(content, checkpoint=checkpoint)
        self.warnings = (*found.reader.warnings, *content.warnings)
        self._pins = Pins(chosen, key.files)
        self._results = Results(found.reader, content, self._pins, target.max_memory)
        self._results.check_memory()
        origins, self.digests = self._results.origins, self._results.digests
        changed = next((name for name in checkpoint.tensors if name not in origins), None)
        known = decide(target.identity, found.reader, chosen.root, changed, is_as_made=False)
        if known.mode in ("compute", "check"):
            raise PlanError(
                f"identity is {known.mode!r}, but of a view nothing is read before it is asked for; leave it out, or identify what was loaded"
            )
        self.identity: str | None = None
        self._made: dict[str, bytes] = {}
        if known.of_source is not None:
            carried = carried_identity(origins, checkpoint, known.of_source)
            self.identity = carried.root
            if not checkpoint.form.file:
                self._made = identity_files(carried, known.of_source, checkpoint.made)
        self._folder = own_folder()
        self.files: Mapping[str, ViewFile] = dict(sorted(self._files(checkpoint, self._made)))
        if _revision(key, chosen, target) != self.revision:  # what was copied has no pins
            raise SourceChangedError(
                f"records of {chosen.path}, or its config, were changed while the view was planned; ask for it again"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files.values())

    def record(self) -> None:
        """Makes ``files`` anew, with a record of the digests of all tensors if each was read as a whole: then they are those of a conversion."""
        self.digests |= self._results.seen
        self.files = dict(sorted(self._files(self.content.checkpoint, self._made)))

    def check_unchanged(self) -> None:
        """Raises SourceChangedError if the source was changed since the view was planned, MissingError if it is gone."""
        self._pins.check_all()

    def close(self) -> None:
        """Removes the temporary folder; files that were made when the view was planned cannot be read any more."""
        self._folder.cleanup()

    def __enter__(self) -> CheckpointView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _files(
        self, checkpoint: TargetCheckpoint, more: Mapping[str, bytes]
    ) -> Iterator[tuple[str, ViewFile]]:
        files = checkpoint.form.plan(checkpoint)
        shared = {path: files.shared_file(path) for path in files.shared}
        _refuse_sums(files, checkpoint, shared)
        root = locate(self._folder.name)
        made = self._write_known(files, checkpoint, root, more)
        segments = _segments(files, checkpoint)
        for path, file in shared.items():
            head = file.head
            if path in made:  # written once more, with the digests that are known
                with_digests = (root / path).open()
                head = with_digests.read(0, len(head))
                with_digests.close()
                made.remove(path)
            yield path, self._file(path, file.nbytes, head, segments.pop(path, ()))
        for path, ((nbytes, segment),) in segments.items():
            has_crc = checkpoint.tensors[segment.name].encoding.checksum
            yield path, self._file(path, nbytes, b"", [segment], has_crc32c=has_crc)
        for path in made:
            status = (root / path).status()
            nbytes = 0 if status is None else status.nbytes
            yield path, self._file(path, nbytes, known=root / path)

    def _file(self, path: str, nbytes: int, *content: Any, **more: Any) -> ViewFile:
        tag = hashlib.sha256(f"{self.revision}/{path}".encode()).hexdigest()[:40]
        return ViewFile(path, nbytes, tag, self._results, *content, **more)

    def _write_known(
        self,
        files: FileMap,
        checkpoint: TargetCheckpoint,
        root: Location,
        more: Mapping[str, bytes],
    ) -> set[str]:
        """Writes every file whose bytes are known now; returns their paths."""
        digests = self._results.digests
        root.make_folders(files.folders())
        files.copy(root)
        markers = files.finish(root, digests, _NoSums(checkpoint))
        for path, data in [*files.literals(), *markers.items(), *more.items()]:
            (root / path).parent.make_folder()
            (root / path).write(data)
        made = set(root.files())
        if len(digests) < len(checkpoint.tensors):  # a record with unknown digests is none
            made = {path for path in made if path.rpartition("/")[2] != FILE_NAME}
        return made


def revision_of(chosen: CheckpointPath, target: CheckedTarget) -> str:
    """The ``revision`` of the view of a checkpoint as it is now; neither is opened, so that it may be one that cannot be planned.

    Raises StorageError for a source that cannot be listed; one that is gone has a revision, too.
    """
    return _revision(_key(chosen, target), chosen, target)


def _key(chosen: CheckpointPath, target: CheckedTarget) -> ConversionKey:
    state = source_state(chosen.root, chosen.computed)
    return key_of_conversion(str(chosen.root), target, state, chosen.unlisted, chosen.computed)


def _revision(key: ConversionKey, chosen: CheckpointPath, target: CheckedTarget) -> str:
    """Digest of a conversion and of the files that it copies or takes digests from, which the key of a conversion leaves out."""
    places = [chosen.root / name for name in sorted(OF_RECORDS)]
    if (config := target.format_options.get("config")) is not None:
        places.append(locate(config))
    lines = [line for place in places for line in place.state()]
    return hashlib.sha256("\n".join([key.output, *lines]).encode()).hexdigest()[:40]


def _segments(files: FileMap, checkpoint: TargetCheckpoint) -> dict[str, list[Any]]:
    """The segments of each shared file, in order; for a chunk's own file its size and its segment."""
    found: dict[str, list[Any]] = defaultdict(list)
    for name, tensor in checkpoint.tensors.items():
        spec = tensor.spec
        for box in (tensor.packed or spec.storage).boxes():
            if not box.size:
                continue
            nbytes = box.size * spec.itemsize
            for place in files.places(name, _chunk_at(spec.storage, box)):
                segment = Segment(place.start, nbytes, name, box)
                own = (_own_bytes(tensor, box), segment)
                found[place.file].append(segment if place.offset is not None else own)
    for path in files.shared:
        found[path].sort(key=lambda segment: segment.start)
    return found


def _chunk_at(grid: Grid, box: Box) -> Index:
    """The chunk in which a box begins."""
    return tuple(bisect_right(c, at) - 1 for c, at in zip(grid.cuts, box.start, strict=True))


def _own_bytes(tensor: TargetTensor, box: Box) -> int:
    """Bytes of a chunk's own file, which zeros pad at the edge of the tensor."""
    spec = tensor.spec
    shape = spec.chunk_shape or box.shape
    if shape[1:] != box.shape[1:]:
        raise PlanError(
            f"a chunk of {spec.name!r} at its edge, {list(box.shape)}, is padded to {list(shape)} along more than its first dimension, which no view "
            "has; choose a layout that divides the tensor, or whole shards (chunk_bytes)"
        )
    return math.prod(shape) * spec.itemsize + 4 * tensor.encoding.checksum


def _refuse_encoded(checkpoint: TargetCheckpoint) -> None:
    """Raises PlanError for encoded chunks, whose size is known only once they are made."""
    for name, tensor in checkpoint.tensors.items():
        encoding = tensor.encoding
        if not is_seekable(encoding):
            raise PlanError(
                f"{name!r} would be stored with {codec_name(encoding)}, so that the size of its files is known only once they are made, and a view "
                "has no such files; store it as it is (compression none)"
            )


def _refuse_sums(
    files: FileMap, checkpoint: TargetCheckpoint, shared: Mapping[str, SharedFile]
) -> None:
    """Raises PlanError for files with checksums of tensors in them."""
    if files.database is not None:
        raise PlanError(
            "an OCDBT database is written as a whole, so that a view has none; leave it out (ocdbt)"
        )
    if any(file.inserts for file in shared.values()):
        raise _no_view(checkpoint)


def _no_view(checkpoint: TargetCheckpoint) -> PlanError:
    return PlanError(
        f"files of the format {checkpoint.form.format!r} hold checksums of all of their tensors, which are known only once everything was read, so "
        "that a view has no such files; take safetensors or keras, or orbax without compression (to)"
    )


class _NoSums:
    """The checksums of chunks, which nobody knows: a format that asks for them has no view."""

    def __init__(self, checkpoint: TargetCheckpoint) -> None:
        self._checkpoint = checkpoint

    def __iter__(self) -> Iterator[ChunkChecksum]:
        raise _no_view(self._checkpoint)
