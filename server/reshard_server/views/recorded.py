"""RecordedViews: the views in the records of a server, for the faces that show them and for the routes about them."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from weakref import finalize

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
from reshard_server.views.byte_stream import ByteStream, Started
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

Look = tuple[str, str, Caller]

Kinds = Mapping[type[ReshardError], Kind]
"""The kinds of problems that errors become here, where they are not those of ``problem_of``."""

_PLANNING: Kinds = {SourceChangedError: CHANGED, ReshardError: NO_VIEW}
_SENDING: Kinds = {SourceChangedError: CHANGED, MissingError: GONE}


class RecordedViews:
    """The views of a server; implements ``views.catalogue.Catalogue``. Used from the event loop."""

    def __init__(self, serving: Services) -> None:
        self._serving = serving
        self.opened = OpenedViews()
        self.loads = Loads(serving.metrics.view_bytes.inc)
        self._blocks = Blocks(serving.settings.view_cache, serving.settings.streams)
        self._looks: dict[Look, asyncio.Task[Revision]] = {}
        self._seen: OrderedDict[tuple[str, str], tuple[Revision, float]] = OrderedDict()
        serving.metrics.views_open.set_function(lambda: len(self.opened))

    def close(self) -> None:
        """Closes the views."""
        self.opened.clear()
        self._blocks.close()

    async def names(self, caller: Caller) -> Sequence[str]:
        find, most = self._serving.find, self._serving.settings.views
        found = await find(lambda serving: versions.newest(serving.database, VIEW, most))
        return [one.name for one in found.versions if one.is_for(caller.may_read)]

    async def find(self, caller: Caller, name: str, revision: str = MAIN) -> ServedView:
        found = await self.revision(caller, name, revision)
        plan = partial(self._serving.find, _planned, found)
        return await self.opened.view(found.commit, self._serving.settings.open_views, plan)

    async def revision(self, caller: Caller, name: str, revision: str = MAIN) -> Revision:
        """A revision, which is not planned. Raises the errors of ``find``, but those of a plan."""
        serving, newest = self._serving, await self.stored(caller, name)
        key = (name, f"{MAIN}@{newest.version}" if revision == MAIN else revision)
        known, looked_at = self._seen.get(key, (None, 0.0))
        is_fresh = time.monotonic() - looked_at < LOOK_SECONDS
        if known is None or not is_fresh or not known.source.stored.is_for(caller.may_read):
            asked = (*key, caller)
            # Else each of many clients would look as soon as a look is old.
            if asked not in self._looks:
                look = serving.find(_found, caller, newest, revision, known)
                self._looks[asked] = asyncio.create_task(look)
                self._looks[asked].add_done_callback(partial(self._looked, asked))
            self._keep(key, await asyncio.shield(self._looks[asked]))
        return self._seen[key][0]

    def _looked(self, asked: Look, look: asyncio.Task[Revision]) -> None:
        del self._looks[asked]
        _ = look.cancelled() or look.exception()  # nobody may wait for it any more

    async def stored(self, caller: Caller, name: str) -> StoredVersion:
        """The newest version of a view. ProblemError (404) if there is none that the caller may read."""
        # Against the name of a version, and against text that a database refuses.
        if not re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII):
            raise stored.gone(VIEW, name[:200])
        return await self._serving.find(stored.find, caller, VIEW, name)

    async def revisions(self, caller: Caller, name: str, most: int, before: int | None = None) -> list[Revision]:  # fmt: skip
        """Revisions, newest first, of steps before ``before``; with the step ``latest`` only the newest."""
        source = Source.of(self._serving, await self.stored(caller, name))
        return await self._serving.find(_ask, source.paths, partial(source.listed, most, before))

    async def send(
        self, caller: Caller, served: ServedView, path: str, start: int, stop: int, status: int, headers: dict[str, str]
    ) -> ByteStream:  # fmt: skip
        self._serving.drain.refuse_new()
        give_back = self._serving.streams.take(caller.name)
        read = self._blocks.read(served.view.files[path], start, stop)
        pieces = self.loads.counted(served, caller.name, read)
        try:  # an error until the first piece is still a problem document
            call = partial(Started, pieces)
            started = await self._serving.find(_ask, served.paths, call, _SENDING)
        except BaseException:
            give_back()
            raise
        return ByteStream(started, give_back, status, headers)

    async def key(self, access_key: str) -> Key | None:
        found = self._serving.tokens.s3_key(access_key)
        return None if found is None else Key(*found)

    def _keep(self, key: tuple[str, str], found: Revision) -> None:
        """Remembers a revision, as it was seen first."""
        first, _ = self._seen.pop(key, (found, 0.0))
        self._seen[key] = (first if first.commit == found.commit else found, time.monotonic())
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)


def _found(serving: Services, caller: Caller, newest: StoredVersion, revision: str, known: Revision | None) -> Revision:  # fmt: skip
    """A revision. An id is looked for where it was last, then among the steps, by each version that the caller may read."""
    name = newest.name
    if revision == MAIN:
        source = Source.of(serving, newest)
        if (main := _ask(serving, source.paths, source.newest)) is None:
            said = f"{source.rules.source} has no finished checkpoint yet, so that the view {name!r} has no revision; ask again later"
            raise ProblemError(NOT_FOUND, said)
        return main
    if not was_given(name, revision):
        said = f"the view {name!r} has no revision {revision[:60]!r}; take {MAIN}, or an id of /v1/views/{name}/revisions"
        raise ProblemError(NOT_FOUND, said)
    for one in versions.versions(serving.database, VIEW, name, MOST_VERSIONS).versions:
        if one.is_for(caller.may_read):  # each is asked for: a listing has no large contents
            source = Source.of(serving, stored.find(serving, caller, VIEW, f"{name}@{one.version}"))
            found = _ask(serving, source.paths, partial(source.of_commit, revision, known))
            if found is not None:
                return found
    said = f"the revision {revision} of the view {name!r} is not there any more, since its source was removed or changed; take {MAIN}"
    raise ProblemError(GONE, said)


def _planned(serving: Services, found: Revision) -> ServedView:
    source, name = found.source, found.source.stored.name
    view = _ask(serving, source.paths, lambda: CheckpointView(*source.asked(found.path)))
    served = ServedView(name, found.commit, view, found.modified, source.paths)
    finalize(served, view.close)  # when no stream has it any more
    if commit_of(name, view.revision) != found.commit:
        said = f"{found.path} was changed before the view of it was planned; ask again"
        raise ProblemError(CHANGED, said)
    return served


def _ask(serving: Services, paths: Sequence[str], call: Callable[[], T], kinds: Kinds = _PLANNING) -> T:  # fmt: skip
    """The result of a call that reads at the first of these paths. Its errors become problems, which name the roots of these paths only."""
    try:
        return serving.roots.ask(paths[0], call, OPEN_SECONDS)
    except (ReshardError, ProblemError) as error:
        problem = problem_of(error) if isinstance(error, ReshardError) else error
        if not (isinstance(error, StorageError) and error.fault):
            named = (kind for cls, kind in kinds.items() if isinstance(error, cls))
            problem.kind = next(named, problem.kind)
        if isinstance(error, MemoryBudgetError):
            problem.detail += " (this server's setting stream_memory)"
        raise problem.renamed(serving.names.only(*paths).text) from error
