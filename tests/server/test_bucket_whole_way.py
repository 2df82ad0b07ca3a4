"""The whole way with buckets: a real server converts from and to them, watches a run, resumes, and tells no secret."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import reshard
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.equal import assert_same_trees
from tests.server.bucket_roots import CREDENTIALS, MARKER, PREFIX, delete, keys_below, put, save
from tests.server.checkpoint import TREE
from tests.server.forked import HOLD
from tests.server.live import Live, live
from tests.server.waiting import until

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["x"]}]}
WHO = "root"


def server_of(tmp_path: Path, root_url: str, **settings: Any) -> Any:
    """A server whose root ``models`` is in the bucket, and ``data`` a folder."""
    return live(tmp_path, "--root", f"models={root_url}", **settings)


def ended(client: httpx.Client, made: str) -> dict[str, Any]:
    def told() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"/v1/conversions/{made}").json()
        return found if found["done"] else None

    found: dict[str, Any] = until(told)
    return found


def convert(client: httpx.Client, source: str, target: str, **more: Any) -> dict[str, Any]:
    made = client.post("/v1/conversions", json={"source": source, "target": target, **more})
    assert made.status_code == 202, made.text
    return ended(client, made.json()["id"])


def check_secrets(tmp_path: Path, *answers: str) -> None:
    """No credential is in the log, in the records or in these answers."""
    texts = [answer.encode() for answer in answers]
    texts += [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    texts += [(tmp_path / "log").read_bytes()]
    assert len(texts) > 2
    for secret in CREDENTIALS:
        assert not [text for text in texts if secret.encode() in text]


def test_from_and_to_a_bucket(bucket: Bucket, root_url: str, tmp_path: Path) -> None:
    save(bucket, tmp_path, "run/7")
    with server_of(tmp_path, root_url) as server, server.client(WHO) as client:
        for source, target in (
            ("models/run/7", "data/out"),
            ("data/out", "models/served/a"),
            ("models/served/a", "models/served/b"),
        ):
            found = convert(
                client,
                source,
                target,
                layout=LAYOUT,
                **({"chunk_bytes": "1KiB"} if target.endswith("b") else {}),
            )
            assert (found["state"], found["error"]) == ("succeeded", None)
            assert (found["result"][0]["source"], found["result"][0]["target"]) == (source, target)
            requests = found["result"][0]["requests"]
            assert requests["actual"]["total"] <= requests["planned"]["total"]
        again = convert(client, "data/out", "models/served/a")
        assert (again["state"], again["error"]["status"]) == ("failed", 409)
        assert again["error"]["detail"].startswith(
            "the target models/served/a exists already and was left untouched"
        )
        missing = convert(client, "models/run/70", "data/none")
        assert missing["error"]["detail"].startswith("models/run/70 does not exist")
        listed = client.get("/v1/checkpoints", params={"root": "models"})
        assert [one["path"] for one in listed.json()["checkpoints"]] == [
            "models/run",
            "models/served/a",
            "models/served/b",
        ]
        told = client.get("/v1/conversions").text
        metrics = client.get("/metrics").text
        assert bucket.name not in told + listed.text + metrics
        check_secrets(tmp_path, told, listed.text, metrics)
    assert_same_trees(reshard.restore(tmp_path / "data" / "out"), TREE)
    assert_same_trees(reshard.restore(f"{root_url}/served/b"), TREE)
    assert not [key for key in keys_below(bucket, "") if "reshard-partial" in key]


def runs(client: httpx.Client) -> dict[str, tuple[str, str | None]]:
    found = client.get("/v1/schedules/s/runs", params={"page_size": 200}).json()["runs"]
    return {run["key"]: (run["outcome"], run["state"]) for run in found}


def test_a_schedule_in_a_bucket(gcs_bucket: Bucket, tmp_path: Path) -> None:
    """Steps are taken with their marker; one that is deleted while it is read is gone, and nothing of it is published."""
    bucket, root_url = gcs_bucket, f"{gcs_bucket.url}/{PREFIX}"
    body = {
        "when": {"directory": "models/run", "poll_seconds": 0.2},
        "targets": [{"target": "models/out/{step}", "layout": LAYOUT}],
        "keep": 2,
    }
    save(bucket, tmp_path, "run/1", marker=False)
    with server_of(tmp_path, root_url) as server, server.client(WHO) as client:
        assert client.put("/v1/schedules/s", json=body).status_code == 201
        save(bucket, tmp_path, "run/10")
        until(lambda: runs(client).get("10") == ("started", "succeeded"))
        assert "1" not in runs(client)
        put(bucket, f"run/1/{MARKER}")
        delete(bucket, f"run/1/{MARKER}")
        save(bucket, tmp_path, "run/1")
        until(lambda: runs(client).get("1") == ("started", "succeeded"))
        # Deleted when the first of its chunks is read.
        doomed = [key.replace("run/1/", "run/20/", 1) for key in keys_below(bucket, "run/1/")]
        rule = bucket.emulator.faults.add(
            Call(lambda: delete(bucket, *doomed)), operation="get", key=f"{PREFIX}/run/20/.*/c"
        )
        save(bucket, tmp_path, "run/20")
        until(lambda: runs(client).get("20", ("", ""))[0] == "gone")
        assert rule.struck
        assert not keys_below(bucket, "out/20/")
        bucket.emulator.faults.clear()
        for step in (30, 40):
            save(bucket, tmp_path, f"run/{step}")
            until(lambda step=step: runs(client).get(str(step)) == ("started", "succeeded"))
        until(lambda: {key.split("/")[1] for key in keys_below(bucket, "out")} == {"30", "40"})
        check_secrets(tmp_path, client.get("/v1/schedules/s/runs").text)
        assert [line for line in server.lines() if line["level"] == "error"] == []
    assert_same_trees(reshard.restore(f"{root_url}/out/40"), TREE)


WEIGHTS = {
    f"w{i:02}": np.random.default_rng(i).integers(0, 99, (256, 256), np.int32) for i in range(10)
}


def begun(client: httpx.Client, target: str) -> str:
    """A conversion that has written some of its objects."""
    made = client.post(
        "/v1/conversions", json={"source": "data/big", "target": target, "workers": 1}
    )
    assert made.status_code == 202, made.text
    name: str = made.json()["id"]

    def moved() -> bool:
        at = client.get(f"/v1/conversions/{name}").json()["progress"]
        return at is not None and at["total_bytes"] / 2 <= at["moved_bytes"] < at["total_bytes"]

    until(moved)
    return name


def test_cancelled_and_resumed(s3_bucket: Bucket, tmp_path: Path) -> None:
    bucket, root_url = s3_bucket, f"{s3_bucket.url}/{PREFIX}"
    reshard.save(tmp_path / "data" / "big", WEIGHTS)
    (tmp_path / HOLD).touch()
    with server_of(tmp_path, root_url) as server, server.client(WHO) as client:
        made = begun(client, "models/out/a")
        assert client.post(f"/v1/conversions/{made}:cancel").status_code in (200, 202)
        assert ended(client, made)["state"] == "cancelled"
        assert not [key for key in keys_below(bucket, "out/a") if key.endswith(MARKER)]
        begun(client, "models/out/b")
        _kill(server)
    (tmp_path / HOLD).unlink()
    with server_of(tmp_path, root_url) as server, server.client(WHO) as client:
        assert client.post(f"/v1/conversions/{made}:retry").status_code in (200, 202)
        (other,) = [
            one["id"]
            for one in client.get("/v1/conversions").json()["conversions"]
            if one["id"] != made
        ]
        for name in (made, other):
            found = ended(client, name)
            assert (found["state"], found["error"]) == ("succeeded", None)
            if name == made:  # a process that is killed loses the records of its last seconds
                assert found["progress"]["resumed_bytes"] > 0
    for name in "ab":
        assert_same_trees(reshard.restore(f"{root_url}/out/{name}"), WEIGHTS)
    assert not [key for key in keys_below(bucket, "") if "reshard-partial" in key]


def _kill(server: Live) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(120)


@pytest.mark.parametrize("name", ["buckets", "root"])
def test_settings_that_cannot_work_are_refused_at_the_start(tmp_path: Path, name: str) -> None:
    from reshard_server.serve import serve
    from reshard_server.settings import Settings

    (tmp_path / "data").mkdir()
    given: dict[str, Any] = {"insecure": True, "state": tmp_path / "state"}
    if name == "buckets":
        given |= {"roots": {"data": tmp_path / "data"}, "buckets": tmp_path / "data" / "b.toml"}
        words = "is in the root 'data', where clients may read and write; name a file elsewhere"
    else:
        given |= {"roots": {"data": "s3://b/x"}, "buckets": tmp_path / "none.toml"}
        words = (
            "the root 'data' cannot be used: .*none.toml .named by RESHARD_BUCKETS.: cannot be read"
        )
    with pytest.MonkeyPatch.context() as patch, pytest.raises(reshard.ReshardError, match=words):
        patch.setenv("RESHARD_BUCKETS", "")
        serve(Settings.model_validate(given))
