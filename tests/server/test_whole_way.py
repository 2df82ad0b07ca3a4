"""The whole way: a real checkpoint, asked for by HTTP, watched, converted by the server's own workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import reshard
from tests.server.live import live

URL = "/v1/conversions"


def test_converted_by_http(tmp_path: Path) -> None:
    weights = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    reshard.save(tmp_path / "data" / "run" / "1", {"params": {"kernel": weights}})
    layout = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": ".", "axes": [None, "x"]}]}
    body = {
        "source": "data/run/1",
        "target": "data/served",
        "layout": layout,
        "max_memory": "64MiB",
    }
    with live(tmp_path) as server, server.client() as client:
        made = client.post(URL, json=body)
        assert made.status_code == 202, made.text
        path = made.headers["Location"]
        with client.stream("GET", f"{path}/events", timeout=120) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines[-2] == "event: end"
        ended = json.loads(lines[-1].removeprefix("data: "))
        assert (ended["state"], ended["error"]) == ("succeeded", None)
        ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
        assert ids == sorted(set(ids)) and ids[-1] == ended["revision"]
        whole = client.get(ended["result_url"]).json()
        (summary,), (report,) = ended["result"], whole["result"]
        assert {**whole, "result": None, "result_url": path} == {**ended, "result": None}
        assert {**summary, "tensors": report["tensors"]} == {**report, "tensor_count": 1}
        (tensor,) = report["tensors"]
        assert tensor["source_digest"] == tensor["target_digest"] is not None
        text = client.get("/metrics").text
        assert f"reshard_moved_bytes_total {float(weights.nbytes)}" in text.splitlines()
        failed = client.post(URL, json={**body, "source": "data/none", "target": "data/other"})
        with client.stream("GET", f"{failed.headers['Location']}/events", timeout=120) as stream:
            last = [line for line in stream.iter_lines() if line][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["type"].startswith("urn:reshard:problem:")
        assert error["detail"] == (
            "data/none does not exist: expected the directory of a checkpoint; check the path"
        )
        said = (error["title"], error["field"], error["remedy"])
        assert said == ("This is not a checkpoint", "/source", "check the path")
        assert str(tmp_path) not in json.dumps(error)
        about = [x for x in server.lines() if x.get("conversion") == ended["id"]]
        assert any("request_id" in x for x in about) and any("request_id" not in x for x in about)
        assert server.line(lambda x: x["message"] == "ended" and x["state"] == "failed")
        ends = [x for x in server.lines() if x["message"] == "ended"]
        assert [(x["level"], x["state"]) for x in ends] == [
            ("info", "succeeded"),
            ("warning", "failed"),
        ]
        assert ends[0]["conversion"] == ended["id"]
        assert (ends[1]["problem"], "none" in ends[1]["detail"]) == (error["type"], True)
    np.testing.assert_array_equal(
        reshard.restore(tmp_path / "data" / "served")["params"]["kernel"], weights
    )
