"""RecordedViews: the views in the records of a server, for the faces that show them and for the routes about them."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar
from weakref import finalize

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard import Blocks, CheckpointView
from reshard.errors import (
    MemoryBudgetError,
    MissingError,
    ReshardError,
    SourceChangedError,
    StorageError,
)
from reshard_server.auth.root_paths import OPEN_SECONDS
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import VIEW, StoredVersion
from reshard_server.errors.problems import (
    CHANGED,
    GONE,
    NO_VIEW,
    NOT_FOUND,
    Kind,
    ProblemError,
    problem_of,
)
from reshard_server.resources import stored
from reshard_server.services import Services
from reshard_server.views.byte_stream import ByteStream, Piece
from reshard_server.views.catalogue import MAIN, Key, ServedView
from reshard_server.views.loads import Loads
from reshard_server.views.opened import OpenedViews
from reshard_server.views.revisions import Revision, Source, commit_of, was_given

T = TypeVar("T")

MOST_VERSIONS = 16
"""Versions of a view, the newest, whose ids answer."""

MOST_SEEN = 4096
"""Revisions whose place is remembered; others are looked for among the steps."""

LOOK_SECONDS = 1.0
"""Between two looks at a source for one revision: a client asks for many ranges in a second."""

PLANNERS = 4
"""Threads that look at sources and plan views; more would wait for the interpreter."""

Kinds = Mapping[type[ReshardError], Kind]
"""The kinds of problems that errors become here, where they are not those of ``problem_of``."""

_PLANNING: Kinds = {SourceChangedError: CHANGED, ReshardError: NO_VIEW}
_SENDING: Kinds = {SourceChangedError: CHANGED, MissingError: GONE}


class RecordedViews:
    """The views of a server; implements ``views.catalogue.Catalogue``. Used from the event loop."""

    def __init__(self, serving: Services) -> None:
        self._serving = serving
        self.opened = OpenedViews()
        self.loads = Loads()
        self._blocks = Blocks(serving.settings.view_cache)
        self._planners = CapacityLimiter(PLANNERS)
        self._seen: OrderedDict[tuple[str, str], tuple[Revision, float]] = OrderedDict()
        serving.metrics.watch_views(self.opened)

    def close(self) -> None:
        """Closes the views."""
        self.opened.clear()
        self._blocks.close()

    async def names(self, caller: Caller) -> Sequence[str]:
        serving = self._serving
        listing = partial(versions.newest, serving.database, VIEW, serving.settings.views)
        found = await run_sync(listing, limiter=serving.lookers)
        return [one.name for one in found.versions if one.is_for(caller.may_read)]

    async def find(self, caller: Caller, name: str, revision: str = MAIN) -> ServedView:
        newest = await self.stored(caller, name)
        key = (name, f"{MAIN}@{newest.version}" if revision == MAIN else revision)
        found, looked_at = self._seen.get(key, (None, 0.0))
        if found is None or time.monotonic() - looked_at > LOOK_SECONDS:
            if revision == MAIN:
                found = await self._in_thread(self._main, newest)
            else:
                found = await self._in_thread(self._found, caller, name, revision, found)
            self._keep(key, found)
        plan = partial(self._in_thread, self._planned, found)
        return await self.opened.view(found.commit, self._serving.settings.open_views, plan)

    async def stored(self, caller: Caller, name: str) -> StoredVersion:
        """The newest version of a view. ProblemError (404) if there is none that the caller may read."""
        if not re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII):
            raise stored.gone(VIEW, name[:200])
        query = partial(stored.find, self._serving, caller, VIEW, name)
        return await run_sync(query, limiter=self._serving.lookers)

    async def revisions(
        self, caller: Caller, name: str, most: int, before: int | None = None
    ) -> list[Revision]:
        """Revisions, newest first, of steps before ``before``; with the step ``latest`` only the newest."""
        newest = await self.stored(caller, name)
        found = await self._in_thread(self._listed, newest, most, before)
        for one in found:
            self._keep((name, one.commit), one)
        return found

    async def send(
        self, caller: Caller, served: ServedView, path: str, start: int, stop: int, status: int, headers: dict[str, str]
    ) -> ByteStream:  # fmt: skip
        self._serving.drain.refuse_new()
        give_back = self._serving.streams.take(caller.name)
        try:
            pieces = await self._in_thread(self._begun, caller.name, served, path, start, stop)
        except BaseException:
            give_back()
            raise
        return ByteStream(pieces, give_back, status, headers)

    async def key(self, access_key: str) -> Key | None:
        found = self._serving.tokens.s3_key(access_key)
        return None if found is None else Key(*found)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await run_sync(partial(call, *arguments), limiter=self._planners)

    def _keep(self, key: tuple[str, str], found: Revision) -> None:
        """Remembers a revision, as it was seen first."""
        by_commit = (key[0], found.commit)
        first, _ = self._seen.get(by_commit, (found, 0.0))
        for each in (key, by_commit):
            self._seen[each] = (first, time.monotonic())
            self._seen.move_to_end(each)
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    def _source(self, version: StoredVersion) -> Source:
        return Source.of(self._serving.roots, version, self._serving.settings.stream_memory)

    def _main(self, newest: StoredVersion) -> Revision:
        source = self._source(newest)
        with self._reading(source.paths, _PLANNING) as ask:
            found: Revision | None = ask(source.newest)
        if found is None:
            said = f"{source.rules.source} has no finished checkpoint yet, so that the view {source.name!r} has no revision; ask again later"
            raise ProblemError(NOT_FOUND, said)
        return found

    def _found(self, caller: Caller, name: str, commit: str, known: Revision | None) -> Revision:
        """The revision of an id. It is looked for where it was last, then among the steps, by each version that the caller may read."""
        if not was_given(name, commit):
            said = f"the view {name!r} has no revision {commit[:60]!r}; take {MAIN}, or an id of /v1/views/{name}/revisions"
            raise ProblemError(NOT_FOUND, said)
        database = self._serving.database
        for listed in versions.versions(database, VIEW, name, MOST_VERSIONS).versions:
            version = versions.get(database, VIEW, f"{name}@{listed.version}")
            if version is None or not version.is_for(caller.may_read):
                continue
            source = self._source(version)
            last = [(known.step, known.path)] if known and known.source == source else ()
            with self._reading(source.paths, _PLANNING) as ask:
                found: Revision | None = ask(partial(source.of_commit, commit, last))
            if found is not None:
                return found
        said = f"the revision {commit} of the view {name!r} is not there any more, since its source was removed or changed; take {MAIN}"
        raise ProblemError(GONE, said)

    def _listed(self, newest: StoredVersion, most: int, before: int | None) -> list[Revision]:
        source = self._source(newest)
        with self._reading(source.paths, _PLANNING) as ask:
            found: list[Revision] = ask(lambda: list(islice(source.listed(before), most)))
        return found

    def _planned(self, found: Revision) -> ServedView:
        source = found.source
        with self._reading(source.paths, _PLANNING) as ask:
            view = ask(lambda: CheckpointView(*source.asked(found.path)))
            again = ask(lambda: source.revision(found.step, found.path))
        served = ServedView(source.name, found.commit, view, found.modified, source.paths)
        finalize(served, view.close)  # when no stream has it any more
        if {commit_of(source.name, view.revision), again.commit} != {found.commit}:
            said = f"{found.path} was changed while the view of it was planned; ask again"
            raise ProblemError(CHANGED, said)
        return served

    def _begun(
        self, token: str, served: ServedView, path: str, start: int, stop: int
    ) -> Iterator[Piece]:
        """The bytes, after the first were read: an error until then is still a problem document."""
        pieces = self._blocks.read(served.view.files[path], start, stop)
        with self._reading(served.paths, _SENDING) as ask:
            first = ask(lambda: list(islice(pieces, 1)))
        return self._counted(token, served, chain(first, pieces))

    def _counted(self, token: str, served: ServedView, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The bytes, counted; as long as they are read, the view stays open."""
        with self.loads.stream(served.name, token) as count:
            for piece in pieces:
                count(len(piece))
                self._serving.metrics.view_bytes.inc(len(piece))
                yield piece

    @contextmanager
    def _reading(self, paths: Sequence[str], kinds: Kinds) -> Iterator[Callable[..., Any]]:
        """Gives ``Roots.ask`` for the first of these paths. Errors within become problems, which name only roots of these paths."""
        try:
            yield lambda call: self._serving.roots.ask(paths[0], call, OPEN_SECONDS)
        except (ReshardError, ProblemError) as error:
            problem = problem_of(error) if isinstance(error, ReshardError) else error
            if not (isinstance(error, StorageError) and error.fault):
                named = (kind for cls, kind in kinds.items() if isinstance(error, cls))
                problem.kind = next(named, problem.kind)
            if isinstance(error, MemoryBudgetError):
                problem.detail += " (this server's setting stream_memory)"
            raise problem.renamed(self._serving.names.only(*paths).text) from error
