"""Repositories of the hub as stores for reading: a view is one commit, whose files are read in ranges or from the cache.

The cache is that of huggingface_hub: a file that it has of the commit is read from the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

from msgspec import Struct, json
from msgspec.structs import replace

from reshard.errors import MissingError, StorageError
from reshard.storage.base import (
    Entry,
    FileStatus,
    OpenFile,
    Pieces,
    RequestRates,
    Requests,
    RequestTraits,
    Traits,
    WriteMode,
)
from reshard.storage.buckets import counts
from reshard.storage.buckets.clouds import key_problem
from reshard.storage.buckets.errors import bucket_error
from reshard.storage.buckets.file import RANGE_BYTES, RangedFile
from reshard.storage.buckets.store import Listing, nothing_there
from reshard.storage.hub import client
from reshard.storage.hub.address import BUCKET_OF_HUB, HubAddress, bucket_url, parse_hub
from reshard.storage.hub.client import T
from reshard.storage.local.store import LOCAL
from reshard.storage.location import Location, locate

if TYPE_CHECKING:
    from httpx2 import Response

MOST_PAGES = 300
"""Pages of a listing, of a thousand names. The hub recommends at most 100,000 files; of 300,000 the listing takes 100 MB."""

_REQUESTS = RequestTraits(rates=RequestRates(5500, 3500))
"""The rates of S3: ranges of large files go to buckets behind the hub, which itself is asked once for each file."""

# A commit appears whole, as a folder that is renamed does: no marker must say that it is complete.
_TRAITS = Traits("", RANGE_BYTES, in_place=False, has_folders=False, has_versions=True, has_free_bytes=False, requests=_REQUESTS)  # fmt: skip

_COMMIT = re.compile("[0-9a-f]{40}")


class HubStore(Struct, frozen=True):
    """A repository of the hub at one commit; implements ``base.Store`` for reading.

    Attributes:
        root: without a path; its revision is the commit.
    """

    root: HubAddress

    @property
    def traits(self) -> Traits:
        return replace(_TRAITS, prefix=str(self.root))

    @property
    def listing(self) -> Listing:
        """Every file of the commit; its version is the hub's hash of its content."""
        return _listing(client.endpoint(), self.root)

    def status(self, path: str, what: str = "") -> FileStatus | None:  # noqa: ARG002
        return self.listing.status(path.rstrip("/"))

    def entries(self, folder: str) -> Sequence[Entry]:
        if not (found := self.listing.entries(folder.rstrip("/"))):
            raise nothing_there("list", self.traits.text(folder))
        return found

    def files(self, folder: str) -> Iterator[str]:
        return self.listing.files(folder.rstrip("/"))

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        file, found = replace(self.root, path=path), self.status(path)
        if found is None or found.kind != "file" or version not in ("", found.version):
            raise nothing_there("read", str(file), what)
        cached = os.path.realpath(_cache_of(file) / "snapshots" / file.revision / path)
        if LOCAL.status(cached) == FileStatus("file", found.nbytes):
            return LOCAL.open(cached, what=what)
        return HubFile(file, found, what)

    def view(self, _folder: str, /) -> HubStore:
        return self

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:  # noqa: ARG002
        self.remove(path)

    def remove(self, path: str) -> NoReturn:
        raise StorageError(
            f"{self.traits.text(path)} cannot be changed by itself: a repository of the hub changes by commits; work on a copy on a disk "
            f"(hf download {self.root.repo} --local-dir ...)"
        )


class HubFile(RangedFile):
    """A file of one commit."""

    def __init__(self, file: HubAddress, found: FileStatus, what: str) -> None:
        super().__init__(str(file), found.version, found.nbytes, what)
        self._file = file
        self._at_hub = f"{client.page_of(file)}/resolve/{file.revision}/{quote(file.path)}"
        self._elsewhere = _elsewhere(self._at_hub)

    def _get(self, offset: int, out: memoryview) -> int:
        done, end = 0, offset + len(out)
        urls = iter([*self._elsewhere])  # tried once: it is signed, and expires

        def attempt() -> tuple[str, dict[str, str]]:
            # A range of a compressed body would be none of the file.
            headers = {"range": f"bytes={offset + done}-{end - 1}", "accept-encoding": "identity"}
            return next(urls, self._at_hub), headers

        def take(answer: Response) -> None:
            nonlocal done
            self._check(answer)
            asked = f"206 bytes {offset + done}-{end - 1}/{self._nbytes} identity"
            encoding = answer.headers.get("content-encoding", "identity")
            sent = f"{answer.status_code} {answer.headers.get('content-range')} {encoding}"
            for data in answer.iter_raw() if sent == asked else ():
                done += len(data)
                if done > len(out):
                    break
                out[done - len(data) : done] = data
                counts.received(len(data))
            if done != len(out):
                raise StorageError(
                    f"cannot read {self._url}: {answer.url.host} sent {sent!r} with {done:,} bytes, where {asked!r} with {len(out):,} is "
                    "expected; check the network and any proxy, and run again"
                )

        client.ask(self._file, Requests(get=1), attempt, take, self._what)
        return done

    def _check(self, answer: Response) -> None:
        """Raises an error if the hub names another commit or content; notes the server that has the bytes."""
        # A server elsewhere has no commits; a hub of others may have hashes of its own.
        for told in (a.headers for a in (*answer.history, answer) if "x-repo-commit" in a.headers):
            tag = told.get("x-linked-etag", told.get("etag", "")).removeprefix("W/").strip('"')
            is_same = tag == self._version or len(tag) != len(self._version)
            if told["x-repo-commit"] != self._file.revision or not is_same:
                raise self._changed("the hub names another commit or ETag for it now")
        self._elsewhere[:] = [] if str(answer.url).startswith(f"{client.endpoint()}/") else [str(answer.url)]  # fmt: skip


@lru_cache(4096)
def _elsewhere(_url_at_hub: str) -> list[str]:
    """The URL of a file at another server, once the hub has named it: the hub is asked once for all ranges."""
    return []


@lru_cache(16)
def _listing(_hub: str, root: HubAddress) -> Listing:
    """Every file of a commit, in one request for each thousand."""
    rows, query = dict[str, tuple[int, str]](), "recursive=true&expand=false"
    for _ in range(MOST_PAGES):
        page, query = _asked(root, Requests(list=1), "tree", query, _files)
        rows |= page
        if not query:
            paths = sorted(rows)
            return Listing(paths, [rows[p][0] for p in paths], [rows[p][1] for p in paths])
    raise StorageError(f"cannot list {root}: it has more than {MOST_PAGES * 1000:,} files")


def _files(page: Any) -> dict[str, tuple[int, str]]:
    files = {one["path"]: one.get("lfs") or one for one in page if one["type"] == "file"}
    if odd := [path for path in files if not path or key_problem(path)]:
        raise ValueError(f"the name {odd[0]!r} in a listing")
    return {path: (max(0, int(one["size"])), str(one["oid"])) for path, one in files.items()}


def _sha(found: Any) -> str:
    return str(_COMMIT.fullmatch(found["sha"])[0])  # type: ignore[index]  # ``ask`` takes any error


def _asked(at: HubAddress, counted: Requests, about: str, query: str, parse: Callable[[Any], T]) -> tuple[T, str]:  # fmt: skip
    """An answer of the API about a revision, and the query of its next page; "" if there is none."""
    url = f"{client.endpoint()}/api/{at.kind}/{at.repo}/{about}/{quote(at.revision, safe='')}?{query}"  # fmt: skip

    def take(answer: Response) -> tuple[T, str]:
        body = b"".join(islice(answer.iter_bytes(1 << 16), 1 << 10))  # at most 64 MiB
        # Only the query of the next page, since a hub behind another name may link to its own.
        return parse(json.decode(body)), urlsplit(answer.links.get("next", {}).get("url", "")).query

    return client.ask(at, counted, lambda: (url, {}), take)


def _cache_of(root: HubAddress) -> Path:
    """The folder of a repository in the cache of huggingface_hub."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=root.repo, repo_type=root.kind[:-1])  # fmt: skip


def hub_location(text: str) -> Location:
    """The location of an ``hf://`` URL, at the commit that its revision is now, in one request.

    While the user forbids requests, it is a folder in the cache of huggingface_hub. Raises StorageError as ``parse_hub`` and
    ``bucket_url``, and for a revision that is not there.
    """
    if found := BUCKET_OF_HUB.fullmatch(text):
        return locate(bucket_url(*found.groups()))
    at = parse_hub(text)
    if not client.library().constants.is_offline_mode():
        commit = at.revision if _COMMIT.fullmatch(at.revision) else _asked(at, Requests(head=1), "revision", "", _sha)[0]  # fmt: skip
        return Location(HubStore(replace(at, revision=commit, path="")), at.path)
    ref = _cache_of(at) / "refs" / at.revision
    commit = ref.read_text("utf-8") if ref.is_file() else at.revision
    if not (folder := _cache_of(at) / "snapshots" / commit).is_dir():
        raise MissingError(
            f"cannot read {at}: HF_HUB_OFFLINE forbids requests, and {folder} is not there; unset the variable, or download the repository "
            f"first (hf download {at.repo} --revision {at.revision})"
        )
    return Location(LOCAL, str(folder / at.path))


def hub_branch(text: str) -> Location:
    """The location of an ``hf://`` URL on a branch, to which the next conversion commits; nothing is looked up.

    The branch may be missing. ``locate`` of its text gives what is there now, for reading. Raises as ``parse_hub``, and
    MissingPackageError.
    """
    client.library()
    at = parse_hub(text)
    return Location(HubStore(replace(at, path="")), at.path)


def commit_of(place: Location) -> str | None:
    """The commit that the revision of a place is now; None if there is no such revision. Raises StorageError as ``locate``."""
    try:
        return parse_hub(str(hub_location(str(place)))).revision
    except MissingError:
        return None


def remove_branch(place: Location, commit: str) -> bool:
    """Removes the branch of a place; False if it is gone, or was committed to since. Raises StorageError if the hub refuses."""
    at = parse_hub(str(place))
    if at.path or commit_of(place) != commit:  # a folder is not all of its branch
        return False
    try:
        client.library().HfApi(client.endpoint()).delete_branch(at.repo, branch=at.revision)
    except Exception as error:  # noqa: BLE001 - of the client, or of the HTTP library that its version uses
        raise bucket_error("remove", f"{at} ({client.page_of(at)})", error) from None
    return True
