"""Each fault, as obstore meets it: what it repeats by itself, and what is left to its callers."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import obstore
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from tests.emulators.apis import error_answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import (
    BreakAnswer,
    BreakUpload,
    Call,
    Delay,
    Disconnect,
    DoLater,
    DoTwice,
    Fault,
    Flip,
    Hang,
    Refuse,
)
from tests.emulators.link import Link
from tests.emulators.server import Options

ONCE: Any = {"max_retries": 0, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
QUICK: Any = {"max_retries": 3, "backoff": {"init_backoff": timedelta(milliseconds=1)}}


def get(store: Any, key: str = "a") -> bytes:
    return bytes(obstore.get(store, key).bytes())


@pytest.mark.parametrize(
    ("fault", "repeated"),
    [
        (Refuse(error_answers.SLOW_DOWN), 1), (Refuse(error_answers.INTERNAL_ERROR), 1),
        (Refuse(error_answers.TOO_MANY_REQUESTS), 1), (Disconnect(), 1), (BreakAnswer(3), 1),
        (Delay(0.01), 0), (DoTwice(), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else None,
)  # fmt: skip
def test_a_read_survives(own_bucket: Bucket, fault: Fault, repeated: int) -> None:
    store = own_bucket.store(retry_config=QUICK)
    obstore.put(store, "a", b"0123456789")
    rule = own_bucket.emulator.faults.add(fault, operation="get")
    assert get(store) == b"0123456789"
    assert get(store) == b"0123456789"
    assert rule.struck == 1
    assert own_bucket.emulator.log.count("get") == 2 + repeated


def test_a_broken_body_goes_on_where_it_broke_off(own_bucket: Bucket) -> None:
    store = own_bucket.store(retry_config=QUICK)
    etag = obstore.put(store, "a", b"0123456789")["e_tag"]
    own_bucket.emulator.faults.add(BreakAnswer(4), operation="get")
    got = obstore.get(store, "a", options={"if_match": etag})
    assert bytes(got.bytes()) == b"0123456789"
    _, rest = own_bucket.emulator.log.of("get")
    assert (rest.range, rest.headers["if-match"], rest.bytes_out) == ("bytes=4-9", etag, 6)


@pytest.mark.parametrize("fault", [BreakUpload(3), Disconnect(), Refuse(error_answers.SLOW_DOWN)])
def test_a_write_survives(own_bucket: Bucket, fault: Fault) -> None:
    own_bucket.emulator.faults.add(fault, operation="put")
    obstore.put(own_bucket.store(retry_config=QUICK), "a", b"0123456789")
    assert get(own_bucket.store()) == b"0123456789"
    assert own_bucket.emulator.log.count("put") == 2


def test_a_lost_answer_looks_like_somebody_elses_object(own_bucket: Bucket) -> None:
    own_bucket.emulator.faults.add(Disconnect(done=True), operation="put")
    store = own_bucket.store(retry_config=QUICK)
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "marker", b"mine", mode="create")
    assert get(store, "marker") == b"mine"


def test_a_request_that_is_done_twice_answers_the_second(own_bucket: Bucket) -> None:
    own_bucket.emulator.faults.add(DoTwice(), operation="put")
    with pytest.raises(AlreadyExistsError):
        obstore.put(own_bucket.store(), "marker", b"mine", mode="create")
    assert own_bucket.emulator.log.count() == 1


def test_a_write_may_come_after_the_next_one(own_bucket: Bucket) -> None:
    own_bucket.emulator.faults.add(DoLater(2), operation="put")
    with pytest.raises(GenericError):
        obstore.put(own_bucket.store(retry_config=ONCE), "a", b"old")
    obstore.put(own_bucket.store(), "a", b"new")
    assert get(own_bucket.store()) == b"new"
    assert get(own_bucket.store()) == b"old"


@pytest.mark.parametrize("done", [False, True])
def test_a_hanging_request_ends_with_the_time_limit(own_bucket: Bucket, done: bool) -> None:
    rule = own_bucket.emulator.faults.add(Hang(done), times=None)
    limited = type(own_bucket.store())(
        own_bucket.name, retry_config=ONCE, client_options={"allow_http": True, "timeout": "100ms"}
    )
    keys, until = own_bucket.emulator.objects.bucket(own_bucket.name).keys, time.monotonic() + 60
    is_met = False
    while not is_met:  # on a busy machine the client may give up before the server has begun
        assert time.monotonic() < until
        with pytest.raises(GenericError, match=r"timed out|timeout"):
            obstore.put(limited, "a", b"data")
        is_met = bool(keys) if done else bool(rule.struck)
    assert bool(keys) is done


def test_a_flipped_bit_arrives(own_bucket: Bucket) -> None:
    obstore.put(own_bucket.store(), "a", b"0000")
    own_bucket.emulator.faults.add(Flip(2), operation="get")
    assert get(own_bucket.store()) == b"0010"


def test_a_bit_flipped_on_the_way_in_is_refused_where_a_checksum_goes_along(s3_bucket: Bucket) -> None:  # fmt: skip
    sums = s3_bucket.store(checksum_algorithm="CRC64NVME", unsigned_payload=True)
    s3_bucket.emulator.faults.add(Flip(2, upload=True), operation="put")
    with pytest.raises(BaseError, match=r"BadDigest.*CRC64NVME"):
        obstore.put(sums, "a", b"abc")
    obstore.put(sums, "a", b"abc")
    sent = s3_bucket.emulator.log.of("put")[0].headers
    assert sent["x-amz-checksum-crc64nvme"] == "BeXKuz/B+us="


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ACCESS_DENIED", PermissionDeniedError), ("INVALID_ACCESS_KEY", PermissionDeniedError),
        ("CLOCK_SKEWED", PermissionDeniedError), ("SIGNATURE_DOES_NOT_MATCH", PermissionDeniedError),
        ("LOCKED", PermissionDeniedError), ("RETAINED", PermissionDeniedError),
        ("UNAUTHENTICATED", UnauthenticatedError), ("EXPIRED_TOKEN", GenericError),
        ("SIGNED_FOR_OTHER_REGION", GenericError), ("CUSTOMER_KEY_NEEDED", GenericError),
        ("CUSTOMER_KEY_NEEDED_GCS", GenericError), ("NO_SUCH_BUCKET", FileNotFoundError),
    ],
)  # fmt: skip
def test_errors_have_the_words_of_the_cloud(own_bucket: Bucket, name: str, kind: Any) -> None:
    error = getattr(error_answers, name)
    own_bucket.emulator.faults.add(Refuse(error), times=None)
    with pytest.raises(kind) as caught:
        get(own_bucket.store(retry_config=ONCE))
    assert error.code in str(caught.value)
    assert own_bucket.emulator.log.requests[0].status == error.status


def test_a_bucket_in_another_region_is_named(s3_bucket: Bucket) -> None:
    s3_bucket.emulator.faults.add(Refuse(error_answers.OTHER_REGION))
    with pytest.raises(GenericError, match="region"):
        get(s3_bucket.store(retry_config=ONCE))


def test_a_completion_that_answers_200_with_an_error_is_repeated(s3_bucket: Bucket) -> None:
    rule = s3_bucket.emulator.faults.add(
        Refuse(error_answers.COMPLETED_WITH_ERROR), operation="complete_upload"
    )
    store = s3_bucket.store(retry_config=QUICK)
    obstore.put(store, "a", b"0" * (6 << 20), chunk_size=5 << 20)
    assert rule.struck == 1
    assert obstore.head(store, "a")["size"] == 6 << 20


def test_a_process_is_killed_between_two_requests(own_bucket: Bucket) -> None:
    child = subprocess.Popen(["sleep", "600"])
    rule = own_bucket.emulator.faults.add(Call(child.kill), operation="put", nth=3)
    for key in "abc":
        assert child.poll() is None
        obstore.put(own_bucket.store(), key, b"")
    assert child.wait(timeout=60) == -9
    assert (rule.matched, rule.struck) == (3, 1)


def test_two_requests_can_be_made_to_meet(own_bucket: Bucket) -> None:
    meet = threading.Barrier(2, timeout=60)
    own_bucket.emulator.faults.add(Call(meet.wait), operation="put", times=2)

    def create(data: bytes) -> str:
        try:
            obstore.put(own_bucket.store(), "marker", data, mode="create")
        except AlreadyExistsError:
            return "lost"
        return "won"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(create, (b"1", b"2"))) == ["lost", "won"]


def test_rules_choose_by_key_header_and_chance(own_bucket: Bucket) -> None:
    faults, store = own_bucket.emulator.faults, own_bucket.store(retry_config=ONCE)
    denied = Refuse(error_answers.ACCESS_DENIED)
    by_key = faults.add(denied, key="/secret/", times=None)
    by_header = faults.add(denied, header="range: bytes=0-1$", times=None)
    for key in ["a", "b"]:
        obstore.put(store, key, b"data")
    with pytest.raises(PermissionDeniedError):
        obstore.put(store, "secret/a", b"data")
    with pytest.raises(PermissionDeniedError):
        obstore.get(store, "a", options={"range": (0, 2)})
    assert (by_key.struck, by_header.struck) == (1, 1)
    some = faults.add(Delay(0.0), operation="head", chance=0.3, times=None)
    for _ in range(200):
        obstore.head(store, "a")
    assert 30 < some.struck < 90
    assert some.matched == 200


def test_a_link_delays_and_limits_each_stream_and_all(own_bucket: Bucket) -> None:
    server, store = own_bucket.emulator, own_bucket.store()
    obstore.put(store, "a", b"0" * (1 << 20))

    def seconds(link: Link, streams: int) -> float:
        server.link = link
        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as threads:
            assert all(len(data) == 1 << 20 for data in threads.map(get, [store] * streams))
        return time.perf_counter() - started

    assert seconds(Link(latency_s=0.2), 1) >= 0.2
    assert seconds(Link(stream_bytes_per_s=5 << 20), 2) >= 0.2
    assert seconds(Link(total_bytes_per_s=10 << 20), 3) >= 0.3


def test_uploads_are_limited_too(own_bucket: Bucket) -> None:
    own_bucket.emulator.link = Link(stream_bytes_per_s=5 << 20)
    started = time.perf_counter()
    obstore.put(own_bucket.store(), "a", b"0" * (1 << 20))
    assert time.perf_counter() - started >= 0.2


def test_a_store_may_ignore_conditions(own_bucket: Bucket) -> None:
    own_bucket.emulator.options = Options(conditions="ignored")
    for data in (b"first", b"second"):
        obstore.put(own_bucket.store(), "marker", data, mode="create")
    assert get(own_bucket.store(), "marker") == b"second"


def test_a_store_may_refuse_conditions(own_bucket: Bucket) -> None:
    own_bucket.emulator.options = Options(conditions="refused")
    with pytest.raises(BaseError, match=r"NotImplemented|501"):
        obstore.put(own_bucket.store(retry_config=ONCE), "marker", b"", mode="create")


def test_pages_can_be_short(own_bucket: Bucket) -> None:
    own_bucket.emulator.options = Options(page_keys=2)
    for key in ["a/1", "a/2", "b/1", "c", "d"]:
        obstore.put(own_bucket.store(), key, b"")
    pages = list(obstore.list(own_bucket.store()))
    assert [one["path"] for page in pages for one in page] == ["a/1", "a/2", "b/1", "c", "d"]
    assert own_bucket.emulator.log.count("list") == 3
    found = obstore.list_with_delimiter(own_bucket.store())
    assert found["common_prefixes"] == ["a", "b"]
    assert [one["path"] for one in found["objects"]] == ["c", "d"]


def test_the_log_has_every_request(own_bucket: Bucket) -> None:
    store = own_bucket.store()
    obstore.put(store, "run/a", b"0123456789")
    obstore.get(store, "run/a", options={"range": (2, 5)}).bytes()
    put, got = own_bucket.emulator.log.requests
    assert (put.operation, put.bucket, put.key) == ("put", own_bucket.name, "run/a")
    assert (put.bytes_in, put.bytes_out, put.status, put.range) == (10, 0, 200, "")
    assert (got.operation, got.bytes_out, got.status, got.range) == ("get", 3, 206, "bytes=2-4")
    assert own_bucket.emulator.log.counts() == {"put": 1, "get": 1}


def test_the_clock_of_a_server_may_be_wrong(own_bucket: Bucket) -> None:
    own_bucket.emulator.objects.clock_offset_s = -86400.0
    obstore.put(own_bucket.store(), "a", b"")
    told = obstore.head(own_bucket.store(), "a")["last_modified"].timestamp()
    assert abs(time.time() - 86400 - told) < 60


class Short:
    """A socket of a process that has no descriptor left for the first connection."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening, self.refused = listening, False

    def accept(self) -> Any:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.listening.accept()


def test_a_server_outlives_a_shortage_of_descriptors(
    own_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that leaves this process none for a moment takes no later test its server."""
    short = Short(own_bucket.emulator._socket)
    monkeypatch.setattr(own_bucket.emulator, "_socket", short)
    for _ in range(2):  # the server waits for the first one already
        client = http.client.HTTPConnection("127.0.0.1", own_bucket.emulator.port, timeout=60)
        client.request("GET", f"/{own_bucket.name}/none")
        assert client.getresponse().status == 404
        client.close()
    assert short.refused
