"""From a request for bytes to what they are read from; every refusal in the client's words."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import reshard
from reshard.errors import LayoutError, MemoryBudgetError, PlanError, ReshardError, TreeError
from reshard_server.auth.tokens import Caller
from reshard_server.db.layouts.layouts import layout_content
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError, problem_of
from reshard_server.jobs.choose_step import with_choice
from reshard_server.schemas.tensor import TensorQuery
from reshard_server.services import Services

if TYPE_CHECKING:
    Opened = Any  # what reshard.open_checkpoint returns; its class is not among the public names

_WITH_NAME = ("slice", "dtype")
_WITH_SHARD = ("layout", "mesh", "select", "drop", "cast")
_FIELDS: tuple[tuple[type[ReshardError], str], ...] = (
    (TreeError, "name"),
    (LayoutError, "slice"),
    (PlanError, "dtype"),
)


class Stored(Protocol):
    """What the library streams."""

    @property
    def nbytes(self) -> int: ...

    @property
    def state(self) -> str: ...

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Source:
    """What is to be sent, and the headers that say what it is."""

    stored: Stored
    headers: Mapping[str, str]

    @property
    def tag(self) -> str:
        """A strong entity tag: of what is asked for, and of the files that it lies in."""
        return f'"{self.stored.state}"'


def check_form(query: TensorQuery) -> None:
    """ProblemError unless exactly one of the two forms is asked for."""
    if (query.name is None) == (query.shard is None):
        raise ProblemError(
            INVALID,
            "either name (a slice of one tensor) or shard (what one device of a layout holds) is expected, and not "
            "both; give one of them",
            "name",
            "give one of them",
        )
    other = _WITH_SHARD if query.shard is None else _WITH_NAME
    for field in other:
        if getattr(query, field) not in (None, []):
            raise ProblemError(
                INVALID,
                f"{field} goes with {'shard' if query.shard is None else 'name'}; leave it out",
                field,
                "leave it out",
            )


def open_source(serving: Services, caller: Caller, query: TensorQuery) -> Source:
    """Reads metadata only. ProblemError for what may not be seen, is not there, or makes no sense."""
    check_form(query)
    query = with_choice(serving.roots, caller, query)
    path = _path(serving, caller, query.checkpoint)
    with in_words_of_clients(serving, query.checkpoint):
        with _about("checkpoint"):
            opened = reshard.open_checkpoint(path)
        if query.shard is not None:
            return _shard(serving, query, opened, query.shard)
        return _tensor(serving, query, opened)


def _path(serving: Services, caller: Caller, text: str) -> Path:
    try:
        return serving.roots.existing(caller, text)
    except ProblemError as problem:
        problem.field = problem.field or "checkpoint"
        raise


def _tensor(serving: Services, query: TensorQuery, opened: Opened) -> Source:
    limit = serving.settings.stream_memory
    try:
        stream = opened.stream(query.name, query.slice, query.dtype, max_memory=limit)
    except TreeError as error:
        raise ProblemError(NOT_FOUND, str(error), "name") from error
    except MemoryBudgetError as error:
        raise _too_large(error) from error
    except ReshardError as error:
        field = next((f for kind, f in _FIELDS if isinstance(error, kind)), None)
        raise problem_of(error, field) from error
    headers = {
        "X-Reshard-Shape": json.dumps(list(stream.shape)),
        "X-Reshard-Dtype": stream.dtype,
        "X-Reshard-Slice": str(stream.box)[1:-1].replace(" ", ""),
    }
    if stream.digest is not None:
        octets = base64.b64encode(bytes.fromhex(stream.digest)).decode()
        headers["Repr-Digest"] = f"crc64nvme=:{octets}:"
    return Source(stream, headers)


def _shard(serving: Services, query: TensorQuery, opened: Opened, shard: int) -> Source:
    layout = _layout(serving, query.layout)
    try:
        stream = opened.stream_shard(
            shard,
            layout,
            mesh=query.mesh,
            select=query.select,
            drop=query.drop,
            cast=[tuple(rule.rsplit("=", 1)) for rule in query.cast],
            max_memory=serving.settings.stream_memory,
        )
    except MemoryBudgetError as error:
        raise _too_large(error) from error
    name = f"shard-{stream.shard}-of-{stream.shards}.safetensors"
    return Source(stream, {"Content-Disposition": f'attachment; filename="{name}"'})


def _layout(serving: Services, text: str | None) -> dict[str, Any] | None:
    """The content of a layout that is given as JSON, or by its name."""
    if text is None:
        return None
    with _about("layout"):
        if not text.lstrip().startswith("{"):
            return layout_content(serving.database, text)
        try:
            found: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LayoutError(
                f"the layout is no JSON: {error}; give the content of a layout file as JSON, or the name of a stored one"
            ) from None
        return found


def _too_large(error: MemoryBudgetError) -> ProblemError:
    problem = problem_of(error)
    problem.detail = problem.remedy = (
        f"{error} (this server's setting stream_memory), or convert the checkpoint"
    )
    return problem


@contextmanager
def _about(field: str) -> Iterator[None]:
    try:
        yield
    except ReshardError as error:
        raise problem_of(error, field) from error


@contextmanager
def in_words_of_clients(serving: Services, checkpoint: str) -> Iterator[None]:
    """The names of roots in what is said, never the folders of this machine."""
    try:
        yield
    except ReshardError as error:
        raise _told(serving, checkpoint, problem_of(error)) from error
    except ProblemError as problem:
        raise _told(serving, checkpoint, problem) from problem


def _told(serving: Services, checkpoint: str, problem: ProblemError) -> ProblemError:
    names = serving.names.only(checkpoint)
    problem.detail = names.text(problem.detail)
    problem.remedy = problem.remedy and names.text(problem.remedy)
    return problem
