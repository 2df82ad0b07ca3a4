"""A root in a bucket by HTTP: listed, inspected, planned, streamed, with few requests and clear problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.ports import kept_port
from tests.server.bucket_roots import CREDENTIALS, EACH_CLOUD, mark, put, save
from tests.server.checkpoint import TREE
from tests.server.pages.browser import Browser
from tests.server.served import Served

LIST = "/v1/checkpoints"
LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["x"]}]}


@pytest.fixture
def in_bucket(serve: Callable[..., Served], root_url: str, tmp_path: Path) -> Served:
    """The root ``data`` is in a bucket, and ``other`` is a folder."""
    return serve(roots={"data": root_url, "other": tmp_path / "other"})


def listed(served: Served, **query: Any) -> list[tuple[str, str, Any]]:
    answer = served.ask("GET", LIST, params={"root": "data", **query})
    assert answer.status_code == 200, answer.text
    found = answer.json()["checkpoints"]
    assert {one["modified_at"] for one in found} <= {None}
    return [(one["path"], one["kind"], one["folders"]) for one in found]


@EACH_CLOUD
def test_what_is_listed(in_bucket: Served, bucket: Bucket) -> None:
    mark(bucket, "run/1", "run/20", "run/best", "served/a", ".hidden/x", "odd%name")
    mark(bucket, "run/3", markers=())  # not finished
    put(bucket, "notes/readme")
    put(bucket, "hf/model.safetensors", "hf/commit_success.txt")
    bucket.emulator.log.clear()
    assert listed(in_bucket) == [
        ("data/hf", "safetensors", None),
        ("data/run", "steps", ["1", "20"]),
        ("data/run/best", "orbax", None),
        ("data/served/a", "orbax", None),
    ]
    assert bucket.emulator.log.counts() == {"list": 10}  # the root and each folder once
    assert listed(in_bucket, prefix="run") == [
        ("data/run/1", "orbax", None),
        ("data/run/20", "orbax", None),
        ("data/run/best", "orbax", None),
    ]
    assert listed(in_bucket, prefix="notes") == []


def test_pages_of_a_listing(in_bucket: Served, bucket: Bucket) -> None:
    mark(bucket, *(f"m{number}/best" for number in range(7)))
    token: dict[str, str] = {}
    told = []
    while True:
        page = in_bucket.ask("GET", LIST, params={"root": "data", "page_size": 2, **token}).json()
        told += [one["path"] for one in page["checkpoints"]]
        if page["next_page_token"] is None:
            break
        token = {"page_token": page["next_page_token"]}
    assert told == [f"data/m{number}/best" for number in range(7)]


def test_an_empty_root_and_what_is_not_there(in_bucket: Served) -> None:
    assert listed(in_bucket) == []
    for prefix in ("none", "none/1"):
        answer = in_bucket.ask("GET", LIST, params={"root": "data", "prefix": prefix})
        assert (answer.status_code, answer.json()["detail"]) == (
            404,
            f"there is nothing at 'data/{prefix}'; check the path",
        )


def test_folders_that_the_credentials_may_not_list_are_left_out(
    in_bucket: Served, bucket: Bucket
) -> None:
    mark(bucket, "open/a", "secret/a")
    bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="list", nth=4, times=None
    )  # after the root, open and open/a
    assert [path for path, *_ in listed(in_bucket)] == ["data/open/a"]


@EACH_CLOUD
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "words"),
    [
        (answers.ACCESS_DENIED, 502, "storage-refused", "the credentials have no permission; ask the operator of this server, whose log has the reason"),
        (answers.EXPIRED_TOKEN, 502, "storage-refused", "the credentials have expired; ask the operator of this server, whose log has the reason"),
        (answers.SLOW_DOWN, 503, "storage-unavailable", "the store asks for fewer requests, and still did after all retries; send the request again later"),
        (answers.INTERNAL_ERROR, 503, "storage-unavailable", "the store failed, and still did after all retries; send the request again later"),
    ],
)  # fmt: skip
def test_a_cloud_that_fails(
    serve: Callable[..., Served], root_url: str, bucket: Bucket, refusal: answers.ErrorAnswer, status: int, kind: str, words: str
) -> None:  # fmt: skip
    served = serve(roots={"data": root_url})
    bucket.emulator.faults.add(Refuse(refusal), operation="list", times=None)
    answer = served.ask("GET", LIST, params={"root": "data"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"urn:reshard:problem:{kind}")
    assert problem["detail"] == f"cannot list data: {words}"
    assert answer.headers.get("Retry-After") == ("30" if status == 503 else None)
    assert bucket.name not in answer.text


def test_a_server_without_the_cloud_serves_its_other_roots(
    serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "buckets.toml"
    with kept_port() as port:
        settings.write_text(
            f'["s3://gone"]\nendpoint = "http://127.0.0.1:{port}"\nretry_timeout_s = 0.2\nskip_signature = true\n'
        )
        monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
        served = serve(roots={"data": "s3://gone/x", "other": tmp_path})
        answer = served.ask("GET", LIST, "root", params={"root": "data"})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "cannot list data: no connection to the server; send the request again later",
    )
    assert served.ask("GET", LIST, "root", params={"root": "other"}).status_code == 200


def test_inspected_planned_previewed_and_verified(
    in_bucket: Served, bucket: Bucket, tmp_path: Path
) -> None:
    save(bucket, tmp_path, "run/7")
    found = in_bucket.ask(
        "POST", f"{LIST}:inspect", json={"checkpoint": "data/run", "step": "latest"}
    )
    assert found.status_code == 200, found.text
    assert found.json()["uri"] == "data/run/7"
    assert len(found.json()["tensors"]) == 3
    asked = {"source": "data/run/7", "target": "data/out/7", "layout": LAYOUT}
    planned = in_bucket.ask("POST", "/v1/plans", json=asked)
    assert planned.status_code == 200, planned.text
    assert (planned.json()["source"], planned.json()["target"]) == ("data/run/7", "data/out/7")
    _check_requests(in_bucket, asked, planned.json()["requests"])
    preview = in_bucket.ask(
        "POST", "/v1/layouts:preview", json={"checkpoint": "data/run/7", "layout": LAYOUT}
    )
    assert preview.status_code == 200, preview.text
    verified = in_bucket.ask(
        "POST", f"{LIST}:verify", json={"checkpoint": "data/run/7", "other": "data/run/7"}
    )
    assert (verified.status_code, verified.json()["differences"]) == (200, 0)
    for answer in (found, planned, preview, verified):
        assert not [word for word in (bucket.name, *CREDENTIALS) if word in answer.text]


def _check_requests(served: Served, asked: dict[str, Any], found: dict[str, Any]) -> None:
    """A plan has them, for the link that is asked for."""
    assert found["put"] > 3 < found["get"]
    assert (found["latency_s"], found["bytes_per_s"]) == (0.03, 150e6)
    slow = {"latency_s": 0.3, "bytes_per_s": 1e6}
    again = served.ask("POST", "/v1/plans", json={**asked, **slow}).json()["requests"]
    assert again["latency_s"] == 0.3
    assert again["seconds"] > 5 * found["seconds"]
    several = {"source": asked["source"], "targets": [{"target": "data/a"}, {"target": "data/b"}]}
    joint = served.ask("POST", "/v1/plans", json={**several, **slow}).json()
    assert joint["requests"]["put"] > found["put"]
    assert [plan["requests"] for plan in joint["plans"]] == [None, None]
    none = served.ask("POST", "/v1/plans", json={**asked, "latency_s": 0})
    assert none.status_code == 422
    assert "/latency_s" in none.text


def test_slices_of_tensors(in_bucket: Served, bucket: Bucket, tmp_path: Path) -> None:
    save(bucket, tmp_path, "run/7")
    query = {"checkpoint": "data/run/7", "name": "params/kernel", "slice": "3:5"}
    whole = in_bucket.ask("GET", "/v1/tensors", params=query)
    assert whole.status_code == 200, whole.text
    kernel = np.frombuffer(whole.content, np.float32).reshape(2, 32)
    np.testing.assert_array_equal(kernel, TREE["params"]["kernel"][3:5])
    part = in_bucket.ask("GET", "/v1/tensors", params=query, headers={"Range": "bytes=4-11"})
    assert (part.status_code, part.content) == (206, whole.content[4:12])
    missing = in_bucket.ask("GET", "/v1/tensors", params={**query, "checkpoint": "data/run/70"})
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "there is nothing at 'data/run/70'; check the path",
    )


@pytest.mark.parametrize(
    "path", ["gs://bucket/run/1", "s3://test-1/team/a/run", "az://x/y", "file:///etc"]
)
def test_clients_give_no_urls(in_bucket: Served, bucket: Bucket, path: str) -> None:
    asked = [
        ("POST", "/v1/conversions", {"source": path, "target": "data/x"}, "/source"),
        ("POST", "/v1/conversions", {"source": "data/x", "target": path}, "/target"),
        ("POST", f"{LIST}:inspect", {"checkpoint": path}, "/checkpoint"),
        ("PUT", "/v1/schedules/s", {"when": {"directory": path}, "targets": [{"target": "data/{step}"}]}, "/when/directory"),
    ]  # fmt: skip
    for method, url, body, field in asked:
        answer = in_bucket.ask(method, url, json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
        assert "is not the name of a root; give ROOT/path" in answer.json()["detail"]
    assert bucket.emulator.log.count() == 0


def test_an_unfinished_checkpoint(in_bucket: Served, bucket: Bucket, tmp_path: Path) -> None:
    save(bucket, tmp_path, "run/7", marker=False)
    answer = in_bucket.ask("POST", f"{LIST}:inspect", json={"checkpoint": "data/run/7"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("data/run/7 has no commit_success.txt")


def test_pages_name_roots_only(in_bucket: Served, bucket: Bucket, tmp_path: Path) -> None:
    save(bucket, tmp_path, "run/7")
    save(bucket, tmp_path, "best")
    browser = Browser(in_bucket)
    browser.sign_in("ann")
    for path in ("/", "/checkpoints?root=data", "/checkpoint?path=data/best", "/new-conversion", "/checkpoint?path=data/none"):  # fmt: skip
        shown = browser.send("GET", path).text
        assert not [word for word in (bucket.name, *CREDENTIALS) if word in shown]
    assert "data/best" in browser.send("GET", "/checkpoints?root=data").text
    assert "kernel" in browser.send("GET", "/checkpoint?path=data/best").text
    assert "data/run/7" in browser.send("GET", "/new-conversion").text


def test_the_page_of_a_plan_tells_its_requests(
    in_bucket: Served, bucket: Bucket, tmp_path: Path
) -> None:
    save(bucket, tmp_path, "run/7")
    new = in_bucket.create(source="data/run/7", target="data/out/7", layout=LAYOUT)
    browser = Browser(in_bucket)
    browser.sign_in("ann")
    page = browser.go(f"/conversions/{new}/plan?target=0")
    assert browser.status == 200, page.text
    assert "Requests to buckets" in page.text


def test_refused_work_names_the_member(in_bucket: Served) -> None:
    reserved = {"source": "data/run/1", "target": "data/.x.reshard-partial"}
    answer = in_bucket.ask("POST", "/v1/conversions", json=reserved)
    assert (answer.status_code, answer.json()["field"]) == (422, "/target")
    for target in ("data/run/1", "data/run/1/below", "data/run"):
        body = {"source": "data/run/1", "target": target}
        answer = in_bucket.ask("POST", "/v1/conversions", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, "/target"), target
    half = {"source": "data/run/100", "target": "data/run/1000"}
    answer = in_bucket.ask("POST", "/v1/conversions", json=half)
    assert answer.status_code == 202, json.dumps(answer.json())
