"""A group of processes that save together: they exchange results at every step, and an error in one process ends all.

Messages go through the key-value store of jax's coordination service, to which every process of
``jax.distributed`` is connected. It needs no device, so it works from a background thread while
the devices compute. jax has no public name for its client; only this module uses the private one.

Every step of a save is one exchange: each process posts its result, or its error, and reads the posts of all
others. No process waits longer than ``timeout_s`` for another.

All processes together find out which of them have each array, since none can tell it alone. An array on devices of one process
only may be a pipeline stage, without elements in the other processes, or a copy that every process has of its own. In the
process with the devices both look alike.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard import errors
from reshard.errors import MemoryBudgetError, ReshardError, StorageError
from reshard.saving.tree import LiveLeaf, refuse

if TYPE_CHECKING:
    import jax

MESSAGE_BYTES = 1 << 20
"""Largest value posted at once; the service refuses messages of 4 MiB."""

STEPS = ("placed", "planned", "staged", "written", "published")
"""The exchanges of a save, in order."""

_DONE, _FAILED = b"+", b"-"


class ProcessGroup(Protocol):
    """The processes that save one tree."""

    @property
    def index(self) -> int:
        """This process."""
        ...

    @property
    def count(self) -> int:
        """The number of processes."""
        ...

    def exchange(
        self, step: str, /, work: Callable[[], bytes], *, settle: bool = False
    ) -> list[bytes]:
        """Runs ``work`` here, and returns the results of all processes, in their order.

        Raises this process's own error, else that of the first other process, naming that process, in the same class.
        ``settle``: raise its own error only after the others have ended their work too, or took too long.
        """
        ...

    def settled(self, step: str, /) -> bool:
        """True if all other processes have ended their work of a step."""
        ...


class SingleProcess(Struct, frozen=True):
    """A group of one process."""

    index: int = 0
    count: int = 1

    def exchange(
        self,
        _step: str,
        /,
        work: Callable[[], bytes],
        *,
        settle: bool = False,  # noqa: ARG002  of the interface
    ) -> list[bytes]:
        """The result of ``work``."""
        return [work()]

    def settled(self, _step: str, /) -> bool:
        """True: there are no others."""
        return True


class DistributedGroup(Struct, frozen=True):
    """The processes of ``jax.distributed``.

    Attributes:
        client: of jax's coordination service.
        prefix: begins every key; no other save has the same.
    """

    index: int
    count: int
    client: Any
    prefix: str
    timeout_s: float

    def exchange(
        self, step: str, work: Callable[[], bytes], *, settle: bool = False
    ) -> list[bytes]:
        """Posts the result of ``work``, then waits for those of the others."""
        try:
            posted = _DONE + work()
        except BaseException as error:
            self._post(step, _FAILED + _described(error))
            if settle:
                self._wait_for_others(step)
            raise
        self._post(step, posted)
        found = [posted if n == self.index else self._read(step, n) for n in range(self.count)]
        self._forget_before(step)
        for number, message in enumerate(found):
            if message.startswith(_FAILED):
                kind, text = json.loads(message[1:])
                raise getattr(errors, kind)(f"process {number} of {self.count} failed: {text}")
        return [message[1:] for message in found]

    def settled(self, step: str) -> bool:
        """True if every other process has posted its result of the step."""
        try:
            for key in self._ends(step):
                self.client.key_value_try_get_bytes(key)
        except RuntimeError:
            return False
        return True

    def _wait_for_others(self, step: str) -> None:
        with suppress(RuntimeError):
            for key in self._ends(step):
                self.client.blocking_key_value_get_bytes(key, self._limit_ms)

    def _ends(self, step: str) -> list[str]:
        """The keys that the others post last."""
        return [self._key(step, n, "parts") for n in range(self.count) if n != self.index]

    @property
    def _limit_ms(self) -> int:
        return max(1, int(self.timeout_s * 1000))

    def _post(self, step: str, message: bytes) -> None:
        packed = zlib.compress(message, 1)
        parts = range(0, len(packed), MESSAGE_BYTES)
        for number, at in enumerate(parts):
            part = packed[at : at + MESSAGE_BYTES]
            self._call("key_value_set_bytes", self._key(step, self.index, number), part)
        count = len(parts).to_bytes(4, "little")
        self._call("key_value_set_bytes", self._key(step, self.index, "parts"), count)

    def _read(self, step: str, process: int) -> bytes:
        get, limit_ms = self.client.blocking_key_value_get_bytes, self._limit_ms
        try:
            count = get(self._key(step, process, "parts"), limit_ms)
            keys = (self._key(step, process, n) for n in range(int.from_bytes(count, "little")))
            packed = b"".join(get(key, limit_ms) for key in keys)
        except RuntimeError as error:
            raise StorageError(
                f"process {process} of {self.count} gave no answer within {self.timeout_s:g} s (step "
                f"{step!r}), so nothing was published: {_first_line(error)}; look at its log, and make "
                "sure that every process calls save with the same path, or allow more time (timeout)"
            ) from error
        return zlib.decompress(packed)

    def _forget_before(self, step: str) -> None:
        """Deletes this process's posts of the previous step: the others read them before they post this step."""
        for before in STEPS[: STEPS.index(step)][-1:]:
            self._call("key_value_delete", f"{self.prefix}/{before}/{self.index}/")

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self.client, method)(*arguments)
        except RuntimeError as error:
            raise StorageError(
                f"jax's coordination service cannot be reached, so nothing was published: "
                f"{_first_line(error)}"
            ) from error

    def _key(self, step: str, process: int, part: int | str) -> str:
        return f"{self.prefix}/{step}/{process}/{part}"


def group_of(path: str, timeout_s: float) -> ProcessGroup:
    """The processes that save to ``path``; a SingleProcess if jax is not distributed.

    Saves to the same path are numbered in the service, per process, so every process must start
    them in the same order, as with jax's own collectives.
    """
    import jax

    if jax.process_count() == 1:
        return SingleProcess()
    client, index = _client(), jax.process_index()
    key = f"reshard.save/{zlib.crc32(path.encode()):08x}/{path}"
    number = client.key_value_increment(f"{key}/count/{index}", 1)
    return DistributedGroup(index, jax.process_count(), client, f"{key}/{number}", timeout_s)


def _client() -> Any:
    from jax._src import distributed

    client = getattr(distributed.global_state, "client", None)
    if client is None:
        raise StorageError(
            "this jax has several processes but no coordination service, which saving needs; call "
            "jax.distributed.initialize at the start of the program"
        )
    return client


def _described(error: BaseException) -> bytes:
    known = isinstance(error, ReshardError) and not isinstance(error, MemoryBudgetError)
    kind = type(error).__name__ if known else ReshardError.__name__
    text = str(error) if isinstance(error, ReshardError) else f"{type(error).__name__}: {error}"
    return json.dumps([kind, text]).encode()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_same(payloads: Sequence[bytes]) -> None:
    """Raises TreeError if the plans of processes differ; a payload has one line per tensor."""
    first = payloads[0].decode().splitlines()
    for process, payload in enumerate(payloads[1:], 1):
        if payload == payloads[0]:
            continue
        lines = payload.decode().splitlines()
        pairs = zip(first, lines, strict=False)
        ours, theirs = next(((a, b) for a, b in pairs if a != b), ("nothing more", "nothing more"))
        if len(first) != len(lines) and ours == theirs:
            at = min(len(first), len(lines))
            ours, theirs = [(*rest[at : at + 1], "nothing more")[0] for rest in (first, lines)]
        raise errors.TreeError(
            f"processes 0 and {process} would save different trees: process 0 has {ours}, process "
            f"{process} has {theirs}; every process must call save with the same arguments, and a tensor "
            "must be whole in every process, or one array with the same sharding in all of them"
        )


def local_placements(leaves: Sequence[LiveLeaf]) -> bytes:
    """The processes whose devices have each jax array of this process's tree, by name, as JSON."""
    import jax

    arrays = {x.leaf.name: x.array for x in leaves if isinstance(x.array, jax.Array)}
    return json.dumps({n: _processes(array.sharding) for n, array in arrays.items()}).encode()


def own_copies(posted: Sequence[bytes]) -> frozenset[str]:
    """The arrays that every process has as a copy of its own.

    Args:
        posted: the ``local_placements`` of all processes, in their order.

    Raises TreeError, naming the arrays that are neither one array of all processes nor a copy in each.
    """
    placements: list[Mapping[str, list[int]]] = [json.loads(each) for each in posted]
    if len(placements) == 1:
        return frozenset()
    named = set(placements[0]).intersection(
        *placements[1:]
    )  # other differences are found in the plans
    found = {
        name: [tuple(each[name]) for each in placements] for name in placements[0] if name in named
    }
    own = [(process,) for process in range(len(posted))]
    refuse({name: _unlike(on) for name, on in found.items() if len(set(on)) > 1 and on != own})
    return frozenset(name for name, on in found.items() if on == own)


@lru_cache(maxsize=4096)
def _processes(sharding: jax.sharding.Sharding) -> tuple[int, ...]:
    devices: Any = sharding.device_set  # jax does not annotate its devices
    return tuple(sorted({device.process_index for device in devices}))


def _unlike(on: Sequence[tuple[int, ...]]) -> str:
    other = next(process for process, each in enumerate(on) if each != on[0])
    return (
        f"is on devices of processes {list(on[0])} in process 0, and of processes {list(on[other])} in process "
        f"{other}; expected one array with the same sharding in every process (without data where none of its "
        "devices is), or a whole copy in every process"
    )
