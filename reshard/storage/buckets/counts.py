"""Makes and counts every request to a bucket: obstore is called nowhere else.

Requests that obstore sends again after a failure are counted once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from reshard.storage.base import NONE, PAGE_OBJECTS, Requests, RequestTraits
from reshard.storage.buckets.clients import note_answer
from reshard.storage.buckets.clouds import CLOUDS

if TYPE_CHECKING:
    from obstore import GetResult, ListResult, ObjectMeta, PutMode, PutResult
    from obstore.store import ObjectStore

_TRAITS = {cloud.client: cloud.requests for cloud in CLOUDS.values()}

_Buffer = bytes | memoryview
T = TypeVar("T")

_lock = threading.Lock()
_done = NONE


def so_far() -> Requests:
    """The requests of this process to buckets, all threads together."""
    return _done


def add(requests: Requests) -> None:
    """Counts requests."""
    global _done
    with _lock:
        _done = _done + requests


def _answered(client: ObjectStore, answer: T) -> T:
    note_answer(client)
    return answer


def _traits(client: ObjectStore) -> RequestTraits:
    return _TRAITS[type(client).__name__]


def head(client: ObjectStore, path: str) -> ObjectMeta:
    """A look at an object."""
    import obstore

    add(Requests(head=1))
    return _answered(client, obstore.head(client, path))


def get(client: ObjectStore, path: str, options: Any = None) -> GetResult:
    """A range of an object; ``received`` counts the bytes that are read of it."""
    import obstore

    add(Requests(get=1))
    return _answered(client, obstore.get(client, path, options=options))


def received(nbytes: int) -> None:
    """Counts bytes of an answer."""
    add(Requests(received_bytes=nbytes))


def pages(
    client: ObjectStore, folder: str, chunk_size: int = PAGE_OBJECTS
) -> Iterator[Sequence[ObjectMeta]]:
    """The objects below a folder, as obstore lists them."""
    import obstore

    add(Requests(list=1))
    found = 0
    for page in obstore.list(client, folder or None, chunk_size=chunk_size):
        note_answer(client)
        found += len(page)
        while found > PAGE_OBJECTS:
            add(Requests(list=1))
            found -= PAGE_OBJECTS
        yield page
    note_answer(client)  # there may be no page


def names(client: ObjectStore, folder: str) -> ListResult[Sequence[ObjectMeta]]:
    """The objects and folders right below a folder."""
    import obstore

    found = _answered(client, obstore.list_with_delimiter(client, folder or None))
    count = len(found["objects"]) + len(found["common_prefixes"])
    add(Requests(list=max(1, -(-count // PAGE_OBJECTS))))
    return found


def version_of(e_tag: str | None) -> str:
    """An ETag in quotes, as requests need it; Azure lists ETags without quotes."""
    if not e_tag or e_tag.endswith('"'):
        return e_tag or ""
    return f'"{e_tag}"'


def put(
    client: ObjectStore, path: str, data: bytes | memoryview, mode: PutMode, attributes: Mapping[str, str]
) -> PutResult:  # fmt: skip
    """An object, put whole."""
    import obstore

    add(Requests(put=1, sent_bytes=len(data)))
    done = obstore.put(
        client, path, data, mode=mode, use_multipart=False, attributes=dict(attributes) or None
    )
    return _answered(client, done)


def put_parts(
    client: ObjectStore, path: str, parts: Iterable[_Buffer], part_bytes: int, at_once: int
) -> PutResult:  # fmt: skip
    """An object, uploaded in parts.

    obstore asks for the parts within its own runtime, where no request is possible. The parts may be read from a bucket, so
    that another thread makes them.
    """
    import obstore

    sent = 0

    def counted() -> Iterator[_Buffer]:
        nonlocal sent
        for part in _by_another_thread(parts):
            before, sent = sent, sent + len(part)
            more = -(-sent // part_bytes) - -(-before // part_bytes)
            add(Requests(part=more, sent_bytes=len(part)))
            yield part

    add(Requests(put=2))
    done = obstore.put(
        client, path, counted(), use_multipart=True, chunk_size=part_bytes, max_concurrency=at_once
    )
    return _answered(client, done)


def _by_another_thread(parts: Iterable[_Buffer]) -> Iterator[_Buffer]:
    every = iter(parts)
    with ThreadPoolExecutor(1, "reshard.parts") as thread:
        while (part := thread.submit(next, every, None).result()) is not None:
            yield part


def delete(client: ObjectStore, paths: str | Sequence[str]) -> None:
    """Deletes objects."""
    import obstore

    many = not isinstance(paths, str)
    add(Requests(delete=-(-len(paths) // _traits(client).deleted_at_once) if many else 1))
    obstore.delete(client, paths)


def copy(client: ObjectStore, path: str, target: str) -> None:
    """Has the store copy an object to a free path; on S3 as the one part of an upload."""
    import obstore

    add(Requests(copy=1, put=_traits(client).puts_of_copy))
    obstore.copy(client, path, target, overwrite=False)
