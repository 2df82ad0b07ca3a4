"""Opens the bytes that a request names; problems name the client's paths only."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import reshard
from reshard.errors import LayoutError, MemoryBudgetError, PlanError, ReshardError, TreeError
from reshard.identity.leaf_tree import is_installed
from reshard_server.auth.root_paths import OPEN_SECONDS
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored.kinds import LAYOUT
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError, problem_of
from reshard_server.jobs.check_request import content_of, resolve_step
from reshard_server.schemas.checkpoint import StoredQuery, TensorQuery
from reshard_server.services import Services

if TYPE_CHECKING:
    Q = TypeVar("Q", bound=StoredQuery)
    Opened = Any  # what reshard.open_checkpoint returns; its class is not among the public names

IDENTITY = "X-Reshard-Identity"
PROOF = "X-Reshard-Proof"
LONGEST_PROOF = 4 << 10
"""Longer proofs, in base64, are not sent as a header: proxies refuse answers with large ones."""

MISSING_CHUNKS = "X-Reshard-Missing-Chunks"
"""Tells a client what ``MissingChunksWarning`` tells a program, so that the log need not."""

warnings.filterwarnings("ignore", category=reshard.MissingChunksWarning)

_WITH_NAME = ("slice", "dtype")
_WITH_SHARD = ("layout", "mesh", "select", "drop", "cast")
_FIELDS: tuple[tuple[type[ReshardError], str], ...] = (
    (TreeError, "name"),
    (LayoutError, "slice"),
    (PlanError, "dtype"),
)


class ByteSource(Protocol):
    """The library's stream of a tensor slice, or of a device's shard."""

    @property
    def nbytes(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def missing_chunks(self) -> int: ...

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class TensorSource:
    """The bytes to send, and the headers that describe them."""

    stored: ByteSource
    headers: Mapping[str, str]

    @property
    def tag(self) -> str:
        """A strong entity tag of the request and of the files that contain the bytes."""
        return f'"{self.stored.state}"'


def check_form(query: TensorQuery) -> None:
    """Raises ProblemError unless the request has exactly one of the two forms."""
    if (query.name is None) == (query.shard is None):
        raise ProblemError(
            INVALID,
            "expected either name (a slice of one tensor) or shard (the slices of one device of a layout), but not "
            "both; give one of them",
            "name",
        )
    other = _WITH_SHARD if query.shard is None else _WITH_NAME
    for field in other:
        if getattr(query, field) not in (None, []):
            raise ProblemError(
                INVALID,
                f"{field} needs {'shard' if query.shard is None else 'name'}; leave it out",
                field,
            )


def open_source(serving: Services, caller: Caller, query: TensorQuery) -> TensorSource:
    """Opens the source; reads metadata only. Raises ProblemError if it is missing, forbidden or invalid."""
    check_form(query)
    with opening(serving, caller, query) as (resolved, opened):
        if resolved.shard is not None:
            return _shard(serving, resolved, opened, resolved.shard)
        return _tensor(serving, resolved, opened)


@contextmanager
def opening(serving: Services, caller: Caller, query: Q) -> Iterator[tuple[Q, Opened]]:
    """The opened checkpoint of a query, and the query with the path of its step. Problems within name the client's paths only."""
    query = resolve_step(serving.roots, caller, query)
    path = _path(serving, caller, query.checkpoint)
    with with_client_paths(serving, query.checkpoint):
        with _about("checkpoint"):
            opened = serving.roots.ask(
                query.checkpoint,
                lambda: reshard.open_checkpoint(path, unlisted=query.unlisted),
                OPEN_SECONDS,
            )
        yield query, opened


def _path(serving: Services, caller: Caller, text: str) -> str:
    try:
        return str(serving.roots.existing(caller, text))
    except ProblemError as problem:
        problem.field = problem.field or "checkpoint"
        raise


def _tensor(serving: Services, query: TensorQuery, opened: Opened) -> TensorSource:
    limit = serving.settings.stream_memory
    try:
        stream = opened.stream(query.name, query.slice, query.dtype, max_memory=limit)
    except ReshardError as error:
        raise slice_problem(error) from error
    headers = {
        "X-Reshard-Shape": json.dumps(list(stream.shape)),
        "X-Reshard-Dtype": stream.dtype,
        "X-Reshard-Slice": str(stream.box)[1:-1].replace(" ", ""),
        **_missing(stream),
        **_identity(serving, query, opened, stream),
    }
    if stream.digest is not None:
        octets = base64.b64encode(bytes.fromhex(stream.digest)).decode()
        headers["Repr-Digest"] = f"crc64nvme=:{octets}:"
    return TensorSource(stream, headers)


def slice_problem(error: ReshardError) -> ProblemError:
    """The problem of a slice that cannot be read or proved."""
    if isinstance(error, TreeError):
        return ProblemError(NOT_FOUND, str(error), "name")
    if isinstance(error, MemoryBudgetError):
        return _too_large(error)
    return problem_of(error, next((f for kind, f in _FIELDS if isinstance(error, kind)), None))


def _identity(
    serving: Services, query: TensorQuery, opened: Opened, stream: Opened | None = None
) -> dict[str, str]:
    """The headers of an identity that the checkpoint records; none where it records none, or this server cannot hash.

    ``stream``: of a slice, which may have a proof.
    """
    if not is_installed():
        return {}
    with _about("checkpoint"):
        return serving.roots.ask(
            query.checkpoint,
            lambda: _identity_headers(opened, stream, serving.settings.stream_memory),
            OPEN_SECONDS,
        )


def _identity_headers(opened: Opened, stream: Opened | None, memory: int) -> dict[str, str]:
    if opened.identity is None:
        return {}
    headers = {IDENTITY: opened.identity.root}
    if stream is None:
        return headers
    if stream.dtype != opened.tensors[stream.name].dtype:
        return headers  # a cast has other bits
    try:
        needs_elements = opened.needs_elements(stream.name, stream.box, max_memory=memory)
    except (LayoutError, MemoryBudgetError):  # it cuts tiles, or is larger than any real tensor
        return headers
    if not needs_elements:
        proof = base64.b64encode(
            opened.prove_slice(stream.name, stream.box, max_memory=memory).hashes
        ).decode()
        if len(proof) <= LONGEST_PROOF:
            headers[PROOF] = f":{proof}:"
    return headers


def _shard(serving: Services, query: TensorQuery, opened: Opened, shard: int) -> TensorSource:
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
    disposition = f'attachment; filename="{name}"'
    headers = {"Content-Disposition": disposition, **_missing(stream)}
    return TensorSource(stream, {**headers, **_identity(serving, query, opened)})


def _missing(stream: ByteSource) -> dict[str, str]:
    """The header that counts chunks for which fill values are sent; none where all are stored."""
    return {MISSING_CHUNKS: str(stream.missing_chunks)} if stream.missing_chunks else {}


def _layout(serving: Services, text: str | None) -> dict[str, Any] | None:
    """The content of a layout, given as JSON or by its name."""
    if text is None:
        return None
    with _about("layout"):
        if not text.lstrip().startswith("{"):
            found: dict[str, Any] = content_of(serving, LAYOUT, text)
            return found
        try:
            content: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LayoutError(
                f"the layout is not JSON: {error}; give the content of a layout file as JSON, or the name of a stored one"
            ) from None
        return content


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
def with_client_paths(serving: Services, checkpoint: str) -> Iterator[None]:
    """Problems that are raised within name roots, never folders of this host."""
    try:
        yield
    except (ReshardError, ProblemError) as error:
        problem = problem_of(error) if isinstance(error, ReshardError) else error
        raise problem.renamed(serving.names.only(checkpoint).text) from error
