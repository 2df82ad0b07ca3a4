"""to_hub: a view becomes files of a model repository on the Hugging Face hub, in one commit, without a copy on a disk.

The files are read twice. The first pass hashes them, since the hub names a large file by its SHA-256, and takes the digests of the tensors for
the record. The second pass sends those that the hub does not have yet. Then one commit makes all of them appear::

    hash   →   record   →   send   →   is the source as it was?   →   commit on the head that was seen at the start

What was sent before a kill is not sent again: the hub has it by its SHA-256. A branch that got another commit meanwhile refuses this one.
"""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.open_target import open_result
from reshard.conversion.plan import MapSummary
from reshard.conversion.report import (
    ConversionReport,
    IdentityReport,
    TensorReport,
    finished_report,
    kept_report,
)
from reshard.engine.progress import Tell, tell_bytes
from reshard.errors import (
    ForbiddenError,
    MemoryBudgetError,
    PlanError,
    ReshardError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from reshard.formats.marks import STATE_SHARD, is_bin_model, is_weights
from reshard.formats.names import OF_RECORDS
from reshard.formats.registry import CheckpointPath
from reshard.storage.buckets.errors import without_secrets
from reshard.storage.hub.address import HubAddress, parse_hub
from reshard.storage.hub.client import endpoint, library
from reshard.storage.location import join, source_text
from reshard.version import __version__
from reshard.views.checkpoint_view import CheckpointView
from reshard.views.view_file import ViewFile

STREAMS = 4
"""The most files that are sent at once: one connection seldom fills a link."""

_TELLING = threading.Lock()


def convert_to_hub(
    chosen: CheckpointPath,
    target: CheckedTarget,
    progress: Tell | None,
    before_publish: Callable[[str], None] | None,
) -> ConversionReport:
    """Converts to a folder of a model repository, by one commit; a finished result of this conversion is left alone.

    A repository that is missing is made, private; a branch that is missing begins at the first commit of ``main``.

    Raises PlanError for a place or an option that makes no sense, TargetExistsError for a folder with other weights, TargetBusyError for a
    branch that got another commit meanwhile, SourceChangedError for a source that changed, ForbiddenError for a token without the rights,
    StorageError for a hub that is away.
    """
    begun, at, ends = time.monotonic(), _address(target), (source_text(chosen.path), target.target)
    hub = library().HfApi(endpoint(), library_name="reshard", library_version=__version__)
    view, streams = _view(chosen, target)
    with view:
        identity = None if view.identity is None else IdentityReport(view.identity, "carried")
        if not target.overwrite and (found := open_result(str(at), view.key)) is not None:
            return finished_report(*ends, found, time.monotonic() - begun, identity)
        with _hub_errors(at):
            head, weights, warnings = _head(hub, at)
        if weights and not target.overwrite:
            raise TargetExistsError(
                f"{at} has weights already, such as {weights[0]}; name another branch or folder, or replace them (overwrite)"
            )
        additions = _hashed(view, at, progress)
        contents: list[_Content] = [each.path_or_fileobj for each in additions]
        tell = tell_bytes(view.nbytes, "copying", progress)
        for content in contents:
            content.tell_read, content.read_bytes = tell, 0
        how: dict[str, Any] = {"revision": at.revision, "num_threads": streams}
        with _hub_errors(at):
            hub.preupload_lfs_files(at.repo, additions, **how, free_memory=False)
        if any(each._should_ignore for each in additions):
            raise StorageError(
                f"the file .gitignore of {at} leaves files out of the commit; nothing was committed; change it"
            )
        view.check_unchanged()
        if before_publish is not None:
            before_publish(target.target)
        how |= {"parent_commit": head, "commit_description": f"reshard: {view.revision}"}
        stale = sorted({*weights} - {each.path_in_repo for each in additions})
        operations = [*map(library().CommitOperationDelete, stale), *additions]
        with _hub_errors(at):
            hub.create_commit(at.repo, operations, commit_message="Write weights", **how)
    sent = sum(content.file.nbytes for content in contents if content.read_bytes)
    mapped = None if view.content.mapping is None else MapSummary.of(view.content.mapping)
    return ConversionReport(
        *ends, tuple(_tensors(view)), read_bytes=view.nbytes + sent, moved_bytes=view.nbytes, written_bytes=sent,
        seconds=time.monotonic() - begun, warnings=(*view.warnings, *warnings), resumed_bytes=view.nbytes - sent, map=mapped, identity=identity,
    )  # fmt: skip


def _address(target: CheckedTarget) -> HubAddress:
    """The place on the hub; PlanError for one, or for an option, that makes no sense."""
    at = parse_hub(target.target)
    is_branch = at.kind == "models" and not re.fullmatch("[0-9a-f]{40}", at.revision)
    # The record has the digests of tensors that are read as a whole.
    is_whole = target.format_options["files"] not in ("ranks", "dcp")
    is_plain = target.to in (None, "safetensors") and is_whole and target.check == "written"
    if not is_branch or not is_plain or is_weights(at.path):
        raise PlanError(
            f"{target.target} should be a folder on a branch of a model, hf://namespace/name[@branch][/folder], and gets safetensors files of whole "
            "tensors, which the hub itself compares with their SHA-256; name such a folder (target), and leave out other formats (to), files of "
            "slices (files) and checks (check)"
        )
    return at


def _view(chosen: CheckpointPath, target: CheckedTarget) -> tuple[CheckpointView, int]:
    """The view, and the number of its files that may be read at once within the memory of the conversion."""
    streams = min(STREAMS, target.workers)
    asked = replace(target, target="", to="safetensors", max_memory=target.max_memory // streams)
    try:
        return CheckpointView(chosen, asked), streams
    except MemoryBudgetError:
        return CheckpointView(chosen, replace(asked, max_memory=target.max_memory)), 1


def _head(hub: Any, at: HubAddress) -> tuple[str, list[str], list[str]]:
    """The head of the branch, the weights in its folder, and warnings; repository and branch are made if they are missing."""
    warnings = []
    if not hub.repo_exists(at.repo):
        hub.create_repo(at.repo, private=True, exist_ok=True)
        warnings = [f"the hub had no repository {at.repo}: it was made, and is private"]
    if not hub.revision_exists(at.repo, at.revision):
        # Not at the head of main, whose weights would be in the branch, too.
        first = hub.list_repo_commits(at.repo)[-1].commit_id
        hub.create_branch(at.repo, branch=at.revision, revision=first, exist_ok=True)
    found = hub.model_info(at.repo, revision=at.revision)
    weights = [f.rfilename for f in found.siblings if _is_of_weights(f.rfilename, at.path)]
    return found.sha, weights, warnings


def _is_of_weights(path: str, folder: str) -> bool:
    parent, _, name = path.rpartition("/")
    is_of_torch = is_bin_model(name) or STATE_SHARD.fullmatch(name) is not None
    return parent == folder and (is_weights(name) or is_of_torch or name in OF_RECORDS)


class _Content(io.BufferedIOBase):
    """The bytes of a file of a view, as the hub's client reads them: in order, and perhaps once more.

    Attributes:
        tell_read: called with the path and the bytes that were read, from any thread.
        read_bytes: bytes that were read once or more since this was last set to 0.
    """

    def __init__(self, file: ViewFile, tell_read: Callable[[str, int], None]) -> None:
        self.file, self.tell_read, self.read_bytes, self._at = file, tell_read, 0, 0
        self.seek(0)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Goes to an offset; nothing is read yet."""
        self._at = (0, self._at, self.file.nbytes)[whence] + offset
        self._pieces, self._rest = self.file.read(self._at), memoryview(b"")
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Some of the next ``size`` bytes, none only at the end; all of them without a size."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(1 << 20), b""))
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
            new = max(0, self._at + len(self._rest) - self.read_bytes)
            with _TELLING:
                self.tell_read(self.file.path, new)
            self.read_bytes += new
        data = bytes(self._rest[:size])
        self._rest, self._at = self._rest[len(data) :], self._at + len(data)
        return data


def _hashed(view: CheckpointView, at: HubAddress, progress: Tell | None) -> list[Any]:
    """The files of the commit, hashed; those that hold digests of tensors once all tensors were read."""
    add = library().CommitOperationAdd

    def hashed(files: Sequence[ViewFile]) -> dict[str, Any]:
        tell = tell_bytes(sum(file.nbytes for file in files), "reading", progress)
        return {f.path: add(join(at.path, f.path), _Content(f, tell)) for f in files}

    heads = {path: file.head for path, file in view.files.items()}
    found = hashed([file for file in view.files.values() if not file.is_known])
    view.record()
    found |= hashed([f for path, f in view.files.items() if f.is_known or f.head != heads[path]])
    return [*found.values()]


def _tensors(view: CheckpointView) -> Iterator[TensorReport]:
    # Of several pieces the first counts.
    pieces = {w.piece.target: w.piece for w in reversed(view.content.wanted_pieces)}
    for name, tensor in view.content.checkpoint.tensors.items():
        piece, made = pieces[name], kept_report(tensor.spec, view.digests.get(name))
        source = piece.source if piece.fill is None else None
        yield replace(made, source=source, source_dtype=piece.source_dtype, proof="written")


_RIGHTS = ForbiddenError, "give a token that may write to it (HF_TOKEN, or hf auth login)"
_MOVED = TargetBusyError, "look at the commit that came in between, and run the same again"
_OTHER = StorageError, "run the same again, which sends no file twice"
_REMEDIES = {401: _RIGHTS, 403: _RIGHTS, 404: _RIGHTS, 409: _MOVED, 412: _MOVED}


@contextmanager
def _hub_errors(at: HubAddress) -> Iterator[None]:
    """Turns an error of the hub's client in the block into a StorageError about ``at``."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of the client, or of the HTTP library that its version uses
        found = error.__cause__ or error if type(error) is RuntimeError else error
        if isinstance(found, ReshardError):  # of the source, while it was read to be sent
            raise found from None
        status = getattr(getattr(found, "response", None), "status_code", 0)
        kind, remedy = _REMEDIES.get(status, _OTHER)
        said = re.sub(r"\s+For more information check: \S+|\s+", " ", without_secrets(str(found)))
        raise kind(
            f"the hub {endpoint()} does not take {at}, and nothing was committed: {said[:300]}; {remedy}"
        ) from None
