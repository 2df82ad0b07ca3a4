"""Conversions whose parts an engine does: a Kubernetes cluster with pods that are processes of this machine, and a Ray cluster."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from tests.executors.ray_head import ray_head
from tests.server.engines.cluster import NAMESPACE, TOKEN, Cluster, cluster
from tests.server.engines.templates import TEMPLATE
from tests.server.live import Live, live
from tests.server.waiting import until

ENDED = ("succeeded", "failed", "cancelled")
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "layer", "axes": ["x"]}],
    "unmatched": "replicate",
}


@dataclass
class Pods:
    """A cluster of which each pod runs a script, and the settings of a server for it."""

    folder: Path
    cluster: Cluster
    settings: dict[str, Any]

    def run(self, script: str) -> None:
        """Sets the script; by default it is the real command."""
        file = self.folder / "bin" / "reshard"
        file.write_text(f"#!/bin/bash\ncd {self.folder}\n{script}\n")
        file.chmod(0o755)


COMMAND = f'exec {Path(sys.executable).parent / "reshard"} "$@"'


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "job.yaml").write_text(TEMPLATE)
    with cluster(tmp_path, tmp_path / "bin") as made:
        named = {"namespace": NAMESPACE, "image": "reshard-server:0.1.0", "api": made.url}
        files = {"template": str(tmp_path / "job.yaml"), "token_file": str(tmp_path / "token")}
        found = Pods(tmp_path, made, {"engines": {"kubernetes": {**named, **files}}})
        found.run(COMMAND)
        yield found


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    tree = {f"layer_{n}": rng.normal(size=(64, 64)).astype(np.float32) for n in range(9)}
    reshard.save(tmp_path / "data" / "trained", tree)
    return tmp_path / "data" / "trained"


def begin(server: Live, engine: str, parts: Any = 3) -> str:
    paths = {"source": "data/trained", "target": "data/served"}
    asked = {**paths, "layout": LAYOUT, "parts": parts, "engine": engine}
    with server.client() as client:
        answer = client.post("/v1/conversions", json=asked)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])


def read(server: Live, conversion: str) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.get(f"/v1/conversions/{conversion}").json()
        return found


def ended(server: Live, conversion: str) -> dict[str, Any]:
    return until(lambda: (found := read(server, conversion))["state"] in ENDED and found)


def assert_made(trained: Path) -> None:
    assert reshard.verify(trained, trained.with_name("served")).differences == 0
    assert sorted(path.name for path in trained.parent.iterdir()) == ["served", "trained"]


def test_pods_do_the_parts_and_the_server_commits(
    pods: Pods, trained: Path, tmp_path: Path
) -> None:
    with live(tmp_path, **pods.settings) as server:
        found = ended(server, begin(server, "kubernetes"))
        assert found["state"] == "succeeded", found["error"]
        assert [tensor["proof"] for tensor in found["result"][0]["tensors"]] == ["written"] * 9
        until(lambda: not pods.cluster.jobs)
    assert_made(trained)


def test_a_server_that_is_killed_finds_its_job_again(
    pods: Pods, trained: Path, tmp_path: Path
) -> None:
    pods.run(f"while [ ! -e go ]; do sleep 0.02; done; {COMMAND}")
    with live(tmp_path, **pods.settings) as server:
        conversion = begin(server, "kubernetes")
        until(lambda: pods.cluster.jobs)
        (before,) = [job["metadata"]["uid"] for job in pods.cluster.jobs.values()]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
    with live(tmp_path, **pods.settings) as server:
        until(lambda: "3 run" in (read(server, conversion)["progress"] or {}).get("tensor", ""))
        (after,) = [job["metadata"]["uid"] for job in pods.cluster.jobs.values()]
        (tmp_path / "go").touch()
        assert ended(server, conversion)["state"] == "succeeded"
        until(lambda: not pods.cluster.jobs)
    assert before == after
    assert_made(trained)


def test_a_cancelled_conversion_ends_its_pods(pods: Pods, trained: Path, tmp_path: Path) -> None:
    pods.run("sleep 600 & wait")
    with live(tmp_path, **pods.settings) as server:
        conversion = begin(server, "kubernetes")
        until(lambda: pods.cluster.running == 3)
        with server.client() as client:
            client.post(f"/v1/conversions/{conversion}:cancel")
        assert ended(server, conversion)["state"] == "cancelled"
        assert not pods.cluster.jobs
    assert not trained.with_name("served").exists()


def test_a_part_that_fails_names_the_logs_and_a_retry_resumes(
    pods: Pods, trained: Path, tmp_path: Path
) -> None:
    pods.run(f'[ "$JOB_COMPLETION_INDEX" != 1 ] || [ -e go ] || exit 2; {COMMAND}')
    with live(tmp_path, **pods.settings) as server:
        conversion = begin(server, "kubernetes")
        found = ended(server, conversion)
        assert found["state"] == "failed"
        assert "kubectl logs -n" in found["error"]["detail"]
        (tmp_path / "go").touch()
        with server.client() as client:
            client.post(f"/v1/conversions/{conversion}:retry")
        assert ended(server, conversion)["state"] == "succeeded"
    assert_made(trained)


@pytest.mark.xdist_group("ray")
def test_a_ray_cluster_does_the_parts(trained: Path, tmp_path: Path) -> None:
    with (
        ray_head() as address,
        live(tmp_path, engines={"ray": {"address": address}}, max_memory="256MiB") as server,
    ):
        found = ended(server, begin(server, "ray"))
        assert found["state"] == "succeeded", found["error"]
    assert_made(trained)


def test_an_engine_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    with live(tmp_path) as server, server.client() as client:
        paths = {"source": "data/trained", "target": "data/served"}
        for engine in ("ray", "kubernetes"):
            answer = client.post("/v1/conversions", json={**paths, "parts": 2, "engine": engine})
            assert answer.status_code == 422
            assert "/engine" in answer.text
            assert f"engine is '{engine}', but this server knows no such cluster" in answer.text
