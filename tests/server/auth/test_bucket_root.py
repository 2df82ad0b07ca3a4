"""Paths below a root in a bucket: the same rules, few requests, and nothing told that the credentials may not see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from reshard_server.auth import root_paths
from reshard_server.auth.root_paths import BucketRoot, Roots, TimedCalls
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import ProblemError

from reshard.errors import MissingError
from reshard.storage.location import locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Hang, Refuse
from tests.server.bucket_roots import CREDENTIALS, EACH_CLOUD, PREFIX, mark, put

ANN = Caller("ann", frozenset({"read", "convert"}), frozenset({"data"}), frozenset({"data"}))
EVE = Caller("eve", frozenset({"read"}), frozenset({"data"}), frozenset())


@pytest.fixture
def roots(root_url: str, tmp_path: Path) -> Roots:
    return Roots.of(
        {"data": locate(root_url), "hidden": locate(root_url), "disk": locate(tmp_path)}
    )


def refused(call: Callable[..., object], *args: object, **more: object) -> ProblemError:
    with pytest.raises(ProblemError) as raised:
        call(*args, **more)
    return raised.value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("data/../other", "it has a name of dots"),
        ("data/a//b", "it has an empty name"),
        ("data//a", "it has an empty name"),
        ("data/a/", "it has an empty name"),
        ("data/.", "it has a name of dots"),
        ("data/%2e%2e/x", "it has the character '%'"),
        ("data/a?X-Amz-Signature=1", "it has the character '?'"),
        ("data/a\u2028b", r"it has the character '\u2028'"),
        ("gs://bucket/run", "'gs:' is not the name of a root"),
        ("s3://test-1/team/a", "'s3:' is not the name of a root"),
    ],
)
def test_what_is_no_path(roots: Roots, bucket: Bucket, text: str, why: str) -> None:
    for call in (roots.readable, roots.writable, roots.existing, roots.changeable):
        problem = refused(call, ANN, text)
        assert (problem.kind.status, f": {why}; give ROOT/path" in problem.detail) == (422, True)
    assert bucket.emulator.log.count() == 0


@EACH_CLOUD
@pytest.mark.parametrize(
    "name", ["run/1000", "é", "e\u0301", "a b", "a@b:c+d=e,f&g", "2026-11-21T03:00:00"]
)
def test_names_are_literal(roots: Roots, root_url: str, bucket: Bucket, name: str) -> None:
    assert (
        roots.readable(ANN, f"data/{name}")
        == roots.recheck(f"data/{name}")
        == locate(f"{root_url}/{name}")
    )
    assert roots.writable(ANN, f"data/{name}") == locate(f"{root_url}/{name}")
    assert bucket.emulator.log.count() == 0
    put(bucket, f"{name}/x")
    assert str(roots.existing(ANN, f"data/{name}")) == f"{root_url}/{name}"


@EACH_CLOUD
def test_half_a_name_is_nothing(roots: Roots, bucket: Bucket) -> None:
    mark(bucket, "run/1000")
    assert roots.existing(ANN, "data/run/1000")
    for text in (
        "data/run/100",
        "data/ru",
        "data/run/10000",
        "data/run/1000/_META",
        "data/Run/1000",
    ):
        problem = refused(roots.existing, ANN, text)
        assert (problem.kind.status, problem.detail) == (
            404,
            f"there is nothing at {text!r}; check the path",
        )


def test_composed_and_decomposed_letters_are_two_names(roots: Roots, bucket: Bucket) -> None:
    put(bucket, "\u00e9/x")
    assert roots.existing(ANN, "data/\u00e9")
    assert refused(roots.existing, ANN, "data/e\u0301").kind.status == 404


def test_a_key_may_be_only_so_long(roots: Roots) -> None:
    text = "data/" + "/".join(["a" * 250] * 5)
    for call in (roots.readable, roots.writable):
        assert refused(call, ANN, text).detail == (
            f"{text[:200]!r} cannot be the name of an object in a bucket: it is too long; choose a shorter path"
        )


def test_what_a_caller_may_not_see_is_answered_like_what_is_not_there(
    roots: Roots, bucket: Bucket
) -> None:
    put(bucket, "key")
    for text in ("hidden/key", "unknown/key"):
        for call in (roots.readable, roots.existing, roots.writable, roots.changeable):
            problem = refused(call, ANN, text)
            assert (
                problem.detail
                == f"there is nothing at {text!r} that this token may use; check root and path"
            )
    for call in (roots.writable, roots.changeable):
        assert refused(call, EVE, "data/key").kind.status == 404
    assert [r.key for r in bucket.emulator.log.of("head")] == [
        f"{PREFIX}/key"
    ]  # of eve's own question


@pytest.mark.parametrize("name", [".out.reshard-partial", "a/.b.reshard-partial/c", ".reshard-held/1", ".reshard-removed-1"])  # fmt: skip
def test_reserved_names_are_no_targets(roots: Roots, bucket: Bucket, name: str) -> None:
    put(bucket, f"{name}/x")
    for call, remedy in ((roots.writable, "target"), (roots.changeable, "checkpoint")):
        problem = refused(call, ANN, f"data/{name}")
        assert (problem.kind.status, problem.remedy) == (422, f"choose another {remedy}")
    assert refused(roots.recheck, f"data/{name}", target=True).kind.status == 422
    assert roots.existing(ANN, f"data/{name}")


def test_a_root_may_be_a_whole_bucket(bucket: Bucket) -> None:
    roots = Roots.of({"data": locate(bucket.url)})
    put(bucket, "x")
    assert str(roots.existing(ANN, f"data/{PREFIX}/x")) == f"{bucket.url}/{PREFIX}/x"
    assert str(roots.folder(ANN, "data", "")) == bucket.url
    assert refused(roots.existing, ANN, "data/none").kind.status == 404


def test_a_name_that_the_credentials_may_not_see_is_not_there(
    roots: Roots, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether something is there cannot be told from the answer; the log has the reason."""
    put(bucket, "secret/x", "open/x")
    bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), key=f"{PREFIX}/secret", times=None)
    for text in ("data/secret", "data/secret/x", "data/secret/none"):
        problem = refused(roots.existing, ANN, text)
        assert (problem.kind.status, problem.detail) == (
            404,
            f"there is nothing at {text!r}; check the path",
        )
    assert (
        "the credentials have no permission" in caplog.text or "have no permission" in caplog.text
    )
    assert roots.existing(ANN, "data/open")


FAULTS = [
    (answers.ACCESS_DENIED, 502, "have no permission; ask the operator of this server, whose log has the reason"),
    (answers.EXPIRED_TOKEN, 502, "the credentials have expired; ask the operator of this server, whose log has the reason"),
    (answers.INVALID_ACCESS_KEY, 502, "the store does not accept the credentials; ask the operator of this server, whose log has the reason"),
    (answers.CLOCK_SKEWED, 502, "the store refuses the time of this machine's clock; ask the operator of this server, whose log has the reason"),
    (answers.SLOW_DOWN, 503, "the store asks for fewer requests, and still did after all retries; send the request again later"),
    (answers.INTERNAL_ERROR, 503, "the store failed, and still did after all retries; send the request again later"),
]  # fmt: skip


@EACH_CLOUD
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("answer", "status", "words"), FAULTS)
def test_what_a_cloud_refuses(
    roots: Roots,
    bucket: Bucket,
    answer: answers.ErrorAnswer,
    status: int,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket.emulator.faults.add(Refuse(answer), operation="list", times=None)
    problem = refused(roots.existing, ANN, "data/run/1")
    assert problem.kind.status == status
    tried = "list data" if answer is answers.ACCESS_DENIED else "look at data/run/1"
    assert problem.detail.startswith(f"cannot {tried}: ")
    assert problem.detail.endswith(words)
    assert bucket.name not in problem.detail
    assert f"(the store says: {answer.code}: " in caplog.text
    assert not [secret for secret in CREDENTIALS if secret in caplog.text]


def test_no_such_bucket(s3_bucket: Bucket) -> None:
    roots = Roots.of({"data": locate("s3://no-such-bucket/x")})
    problem = refused(roots.existing, ANN, "data/run")
    assert (problem.kind.status, problem.detail) == (
        502,
        "cannot look at data/run: there is no such bucket; ask the operator of this server, whose log has the reason",
    )
    assert s3_bucket.emulator.log.count() > 0


def test_a_bucket_that_hangs_holds_up_nobody(
    bucket: Bucket, root_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_paths, "LOOK_SECONDS", 0.3)
    root = BucketRoot("data", locate(root_url), TimedCalls(1))
    bucket.emulator.faults.add(Hang(), times=None)
    problem = refused(root.ask, locate(f"{root_url}/x").exists, 0.3)
    assert (problem.kind.status, problem.kind.retry_after, problem.detail) == (
        504,
        "30",
        "the storage of the root 'data' did not answer within 0 seconds; send the request again later",
    )
    began = time.monotonic()  # the only thread hangs still
    assert refused(root.ask, lambda: 1, 0.3).kind.status == 504
    assert time.monotonic() - began < 60
    assert Roots.of({"disk": locate(tmp_path)}).ask("disk/x", lambda: 1) == 1


def test_calls_end_in_time_and_give_their_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        root_paths, "SLOT_SECONDS", 60.0
    )  # a thread may end some time after its answer
    calls, back = TimedCalls(1), threading.Event()
    assert calls.run(lambda: 7, 60) == 7
    with pytest.raises(MissingError, match="lost"):
        calls.run(lambda: (_ for _ in ()).throw(MissingError("lost")), 60)
    with pytest.raises(TimeoutError):
        calls.run(lambda: back.wait(60), 0.05)
    back.set()
    assert calls.run(lambda: 8, 60) == 8


def test_settings_that_cannot_be_read_are_the_operators(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "none.toml"))
    problem = refused(roots.existing, ANN, "data/x")
    assert (problem.kind.status, problem.detail) == (
        502,
        "the file with the settings of buckets cannot be used; ask the operator of this server, whose log has the reason",
    )
    assert str(tmp_path / "none.toml") in caplog.text


def test_a_call_that_gets_no_thread_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_threads(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = TimedCalls(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            calls.run(lambda: 7, 60)
    assert calls.run(lambda: 7, 60) == 7
