"""The files of a safetensors target, whose headers are known before the first byte, so that any worker writes any chunk.

Beside the files of a folder there is ``slices.json``, and for Hugging Face shards their index, which names the version of a target
that is one. A checkpoint of one file has its record in the header, with zeros for digests until they are known.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from reshard.formats.base import TargetCheckpoint
from reshard.formats.file_map import ChunkChecksum, FileMap, Place, SharedFile
from reshard.formats.safetensors.form import SafetensorsForm
from reshard.formats.safetensors.model_name import ONLY_FILE, index_of_pattern
from reshard.formats.safetensors.slices import DCP_SLICES, RESHARD_SLICES
from reshard.formats.safetensors.write.file_plan import (
    PlannedFile,
    PlannedSlice,
    listed_files,
)
from reshard.formats.safetensors.write.header import (
    HEADER_DIGEST,
    NO_DIGEST,
    RECORD,
    safetensors_header,
    with_digest,
)
from reshard.formats.slice_places import SlicePlaces
from reshard.formats.slices.file_digests import digests_of_files
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    digest_of,
    target_record,
)
from reshard.geometry.grid import Grid, Index
from reshard.storage.commit_markers import markers_at
from reshard.storage.copying import copy_file
from reshard.storage.location import Location


def plan_files(target: TargetCheckpoint, form: SafetensorsForm) -> FileMap:
    """The files of a safetensors checkpoint; nothing is written yet.

    Raises PlanError for a dtype, a name or a number of tensors that the format does not allow, and for files that the
    layouts do not give.
    """
    planned = _Planned(target, form)
    return FileMap(
        places=planned.places,
        finish=planned.finish,
        names=planned.names,
        shared=planned.sizes,
        shared_file=planned.shared_file,
        copy=planned.copy,
    )


class _Planned:
    """The plan from which the files of a target follow; it never changes."""

    def __init__(self, target: TargetCheckpoint, form: SafetensorsForm) -> None:
        self._target = target
        self._form = form
        self._files = {file.name: file for file in listed_files(target, form)}
        self.sizes: dict[str, int] = {}
        self._stored = self._located()

    def names(self) -> list[str]:
        """Every file."""
        return [self._index_name, FILE_NAME, *self.sizes, *self._form.carried.files]

    def copy(self, root: Location) -> None:
        """Copies the files that are carried."""
        carried = self._form.carried
        for path, source in zip(carried.files, carried.locations, strict=True):
            (root / path).parent.make_folder()
            copy_file(source, root / path)

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The part of a file, or of the file of each device that has the chunk."""
        return self._stored[name].places(index)

    def shared_file(self, file: str) -> SharedFile:
        """A file with its header."""
        return SharedFile(self._header(self._files[file]), self.sizes[file])

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        _: Iterable[ChunkChecksum],  # the format stores none
    ) -> Mapping[str, bytes]:
        """Writes the record with the tensors' digests, and the index."""
        if self._form.files == "one":
            (file,) = self._files.values()
            header, nbytes = self._header(file, digests), self.sizes[file.name]
            (root / file.name).write_ranges([(0, header)], nbytes)
            return {}
        known: dict[str, str] = {}
        if index := self._index():
            (root / self._index_name).write(index)
            known[self._index_name] = digest_of(index)
        known |= digests_of_files(root, self._form.carried.files)
        markers = markers_at(root)
        known |= {name: digest_of(data) for name, data in markers.items()}
        (root / FILE_NAME).write(self._record(digests, known))
        return markers

    @property
    def _index_name(self) -> str:
        return index_of_pattern(self._form.file_names or "") or self._form.name.index

    def _located(self) -> dict[str, SlicePlaces]:
        starts: dict[str, dict[Index, list[Place]]] = defaultdict(lambda: defaultdict(list))
        grids = {n: self._form.slices_of(t) for n, t in self._target.tensors.items()}
        for file in self._files.values():
            offset = len(self._header(file))
            for one in file.slices:
                if one.box.size:
                    starts[one.name][_index_of(one, grids[one.name])].append(
                        Place(file.name, offset)
                    )
                offset += one.nbytes
            self.sizes[file.name] = offset
        return {
            name: SlicePlaces(tensor, grids[name], {i: tuple(p) for i, p in starts[name].items()})
            for name, tensor in self._target.tensors.items()
        }

    def _header(self, file: PlannedFile, digests: Mapping[str, str] | None = None) -> bytes:
        """The bytes before the tensors of a file, always as many; None: digests are not known yet."""
        metadata = {HEADER_DIGEST: NO_DIGEST, **self._target.metadata.header_entries}
        if self._form.files in ("ranks", "dcp"):
            metadata |= {RESHARD_SLICES: _slices_text(file, self._target.conversion)}
        if self._form.files == "dcp":
            metadata |= {"DCP_VERSION": "1.0", DCP_SLICES: _dcp_text(file)}
        if self._form.files == "one":
            zeros = dict.fromkeys(self._target.tensors, NO_DIGEST)
            metadata |= {RECORD: self._record({**zeros, **(digests or {})}).decode()}
        return with_digest(safetensors_header([one.entry for one in file.slices], metadata))

    def _record(self, digests: Mapping[str, str], files: Mapping[str, str] | None = None) -> bytes:
        """The record, without the content of headers and index."""
        metadata = self._target.metadata
        own = replace(metadata, header={}, index={} if self._has_index else metadata.index)
        return target_record(replace(self._target, metadata=own), digests, files)

    @property
    def _has_index(self) -> bool:
        """True if there is an index: a single file that loaders find by its name has none, unless deltas may stand on its version."""
        is_alone = list(self._files) in ([ONLY_FILE], [self._form.name.only_file])
        is_version = self._target.version is not None and bool(self._target.tensors)
        return self._form.files == "shards" and (is_version or not is_alone)

    def _index(self) -> bytes:
        """The index of Hugging Face shards; nothing where there is none."""
        target = self._target
        if not self._has_index:
            return b""
        size = sum(t.spec.nbytes for t in target.tensors.values())
        version = {} if target.version is None else {"version": target.version}
        kept = {key: json.loads(text) for key, text in target.metadata.index.items()}
        document = {
            "metadata": {**kept, **version, "total_size": size},
            "weight_map": {
                one.name: file.name for file in self._files.values() for one in file.slices
            },
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _index_of(one: PlannedSlice, grid: Grid) -> Index:
    return tuple(bisect_right(c, at) - 1 for c, at in zip(grid.cuts, one.box.start, strict=True))


def _slices_text(file: PlannedFile, conversion: str) -> str:
    tensors = {
        one.name: {"offset": one.header_offset, "full_shape": one.header_full_shape}
        for one in file.slices
    }
    document = {
        "version": 1,
        "shard": file.number,
        "shards": file.count,
        "conversion": conversion,
        "tensors": tensors,
    }
    return json.dumps(document, separators=(",", ":"))


def _dcp_text(file: PlannedFile) -> str:
    return json.dumps({one.name: {"saved_offsets": one.header_offset} for one in file.slices})
