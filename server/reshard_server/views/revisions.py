"""Revisions of views: the states of a source in which a view is read, each under an id by which it always has the same bytes.

A finished step of a training run is a revision. Its id is made of the state of its files, of the rules, and of the view's name::

    28 digits of the library's revision, then 12 of SHA-256 over the name and these 28

so that an id that was given once is told from one that never was, without a record of either.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError

from reshard.api.sources import source_of
from reshard.api.views import view_target
from reshard.errors import FormatError, LayoutError, PlanError
from reshard.formats.registry import CheckpointPath, is_there
from reshard.formats.steps import committed_among, named_steps
from reshard.views.checkpoint_view import revision_of
from reshard_server.db.documents import unreadable
from reshard_server.db.stored.kinds import StoredVersion
from reshard_server.schemas.conversion import library_options
from reshard_server.schemas.view import OF_A_VIEW, RULES, ViewRules
from reshard_server.services import Services

Step = tuple[int | None, str]
"""A step, and the client's path of it; None for a source that is no run."""


def commit_of(name: str, revision: str) -> str:
    """The id of a revision of the library, or again of an id, under the name of a view."""
    own = revision[:28]
    return own + hashlib.sha256(f"{name}/{own}".encode()).hexdigest()[:12]


def was_given(name: str, commit: str) -> bool:
    """True if an id is one that the view of this name has, or once had."""
    return bool(re.fullmatch("[0-9a-f]{40}", commit)) and commit == commit_of(name, commit)


@dataclass(frozen=True)
class Source:
    """The source of a version of a view, and its rules. No tensor is read. Calls run in threads, within ``Roots.ask``."""

    serving: Services
    stored: StoredVersion
    rules: ViewRules

    @classmethod
    def of(cls, serving: Services, stored: StoredVersion) -> Source:
        """The source of a version. Raises UnreadableError for rules of another version of the server."""
        try:
            return cls(serving, stored, RULES.model_validate(stored.content))
        except ValidationError as error:
            raise unreadable(f"the view {stored.name!r}") from error

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the rules name, the source first."""
        named = (self.rules.source, *(path for _, path in self.rules.operands), self.rules.config)
        return tuple(filter(None, named))

    def asked(self, path: str) -> tuple[CheckpointPath, Any]:
        """The checkpoint of a step, and the options, as the library takes them. Raises ReshardError and ProblemError."""
        rules, real = self.rules, self.serving.roots.recheck
        place = str(real(path))
        asked = {"dequantize": None, "lora": None, "quantize_like": None, **rules.computed(real)}
        chosen = source_of(place, None, rules.item, rules.unlisted, **asked)
        real(path + str(chosen.root).removeprefix(place))  # an item may be a link out of the root
        options = rules.model_dump(mode="json", include=set(OF_A_VIEW))
        options["config"] = None if rules.config is None else str(real(rules.config))
        text, memory = json.dumps(library_options(options)), self.serving.settings.stream_memory
        return chosen, _target(text, memory)

    def revision(self, step: int | None, path: str) -> Revision:
        """The revision that a step is now. Raises as ``asked``."""
        chosen, target = self.asked(path)
        local, modified = chosen.root.local, time.time()
        with suppress(OSError):
            modified = modified if local is None else local.stat().st_mtime
        commit = commit_of(self.stored.name, revision_of(chosen, target))
        return Revision(self, commit, step, path, modified)

    def newest(self) -> Revision | None:
        """The revision ``main``; None without a finished step. Raises as ``asked``."""
        step = next(self._steps(), None)
        return None if step is None else self.revision(*step)

    def of_commit(self, commit: str, known: Revision | None) -> Revision | None:
        """The revision of an id, looked for where it is ``known``, then among all steps; None if none has it."""
        first = [(known.step, known.path)] if known is not None and known.source == self else []
        found = self._revisions(chain(first, self._steps()))
        return next((one for one in found if one.commit == commit), None)

    def listed(self, most: int, before: int | None) -> list[Revision]:
        """Revisions, newest first, of steps before ``before``; with the step ``latest`` only the newest."""
        steps = islice(self._steps(), 1 if self.rules.step == "latest" else None)
        earlier = (s for s in steps if before is None or s[0] is None or s[0] < before)
        return list(islice(self._revisions(earlier), most))

    def _steps(self) -> Iterator[Step]:
        """The finished steps, newest first; without a step the source itself, if it is there. Of two names of a step the first counts."""
        source, asked = self.rules.source, self.rules.step
        folder = self.serving.roots.recheck(source).remembered()
        if asked is None or not is_there(folder):
            yield from [(None, source)] if is_there(folder) else ()
            return
        names = {one.step: one.name for one in reversed(named_steps(folder))}
        for step in sorted(names, reverse=True):
            if asked in ("latest", "each", step) and committed_among(folder, [names[step]]):
                yield step, f"{source}/{names[step]}"

    def _revisions(self, steps: Iterable[Step]) -> Iterator[Revision]:
        """Those of these steps of which the rules can be; of the others there is no view."""
        for step, path in steps:
            with suppress(FormatError, LayoutError, PlanError):
                yield self.revision(step, path)


@dataclass(frozen=True)
class Revision:
    """A state of a view's source.

    Attributes:
        path: the client's path of the step.
        modified: seconds since the epoch, of the source; in a bucket, whose folders have no time, when it was seen first.
    """

    source: Source
    commit: str
    step: int | None
    path: str
    modified: float


@lru_cache(64)
def _target(options: str, memory: int) -> Any:
    """Parsed options; maps and layouts are parsed once for all steps."""
    return view_target(memory, **json.loads(options))
