"""The Jobs of one conversion on many nodes: what their pods run makes the checkpoint that one host makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.geometry.sizes import parse_bytes
from tests.checkpoint_files import files_without_times
from tests.deploy.deployed import Installation, Place, as_user
from tests.deploy.documents import MIB, manifest, parse_size, pod
from tests.emulators.buckets import Bucket

pytestmark = pytest.mark.xdist_group("deploy")
PARTS, COMMIT = (pod("Job", name)["containers"][0] for name in ("reshard-parts", "reshard-commit"))
JOB = manifest("Job", "reshard-parts")["spec"]
LAYOUT = manifest("ConfigMap", "reshard-parts")["data"]["layout.yaml"]


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


def save(path: Path) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    layout["kernel"] = ("data", "model")
    rng = np.random.default_rng(3)
    tree = {
        f"layer_{n}": {"kernel": rng.normal(size=(64, 64)).astype(np.float32), "bias": np.ones(64)}
        for n in range(9)
    }
    reshard.save(path, tree, layout, compression="zstd")


def run(
    container: dict[str, Any], programs: Path, **changed: str
) -> subprocess.CompletedProcess[str]:
    """The container's command, with its variables but for those that are changed."""
    given = {**environment(container), "PATH": f"{programs}:{os.environ['PATH']}", **changed}
    return subprocess.run(
        as_user([*container["command"], *container["args"]]), env=given, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_there_are_as_many_parts_as_pods() -> None:
    assert JOB["completionMode"] == "Indexed"
    assert JOB["completions"] == int(environment(PARTS)["PARTS"])
    assert JOB["parallelism"] <= JOB["completions"]
    assert environment(PARTS)["TARGET"] == environment(COMMIT)["TARGET"]


def test_the_memory_suffices() -> None:
    (size,) = re.findall(r"--max-memory (\S+)", PARTS["args"][0])
    for container in (PARTS, COMMIT):
        limits = container["resources"]
        assert limits["limits"]["memory"] == limits["requests"]["memory"]
        assert parse_bytes(size) + 128 * MIB <= parse_size(limits["limits"]["memory"])
    (workers,) = re.findall(r"--workers (\d+)", PARTS["args"][0])
    assert PARTS["resources"]["requests"]["cpu"] == workers


def test_the_pods_make_what_one_host_makes(image: Installation, at: Place) -> None:
    given = environment(PARTS)
    source, target = at.at(given["SOURCE"]), at.at(given["TARGET"])
    save(source)
    at.make_writable("/data")
    at.write(given["LAYOUT"], LAYOUT)
    here = {"SOURCE": str(source), "TARGET": str(target), "LAYOUT": str(at.at(given["LAYOUT"]))}
    here["PARTS"] = "3"
    for index in range(3):
        early = run(COMMIT, image.folder / "bin", TARGET=str(target)) if index == 2 else None
        assert early is None or "3/3 (not begun)" in early.stderr
        done = run(PARTS, image.folder / "bin", **here, JOB_COMPLETION_INDEX=str(index))
        assert done.returncode == 0, done.stderr
    done = run(COMMIT, image.folder / "bin", TARGET=str(target))
    assert done.returncode == 0, done.stderr
    reshard.convert(source, at.folder / "alone", layout=here["LAYOUT"], max_memory="1GiB")
    assert files_without_times(target) == files_without_times(at.folder / "alone")
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_pods_make_the_same_in_a_bucket(s3_bucket: Bucket, tmp_path: Path) -> None:
    save(tmp_path / "trained")
    (tmp_path / "layout.yaml").write_text(LAYOUT)
    target = f"{s3_bucket.url}/served/1000"
    programs = Path(sys.executable).parent
    here = {**os.environ, "SOURCE": str(tmp_path / "trained"), "TARGET": target, "PARTS": "3"}
    here["LAYOUT"] = str(tmp_path / "layout.yaml")
    del here["PATH"]
    for index in range(3):
        done = run(PARTS, programs, **here, JOB_COMPLETION_INDEX=str(index))
        assert done.returncode == 0, done.stderr
    assert not reshard.is_checkpoint(target)
    done = run(COMMIT, programs, **here)
    assert done.returncode == 0, done.stderr
    assert reshard.verify(tmp_path / "trained", target).differences == 0


def test_a_wrong_command_line_has_the_code_that_fails_the_job(tmp_path: Path) -> None:
    rule = JOB["podFailurePolicy"]["rules"][0]
    assert rule["action"] == "FailJob"
    wrong = {**PARTS, "args": [f"{PARTS['args'][0]} --no-such-option"]}
    programs = Path(sys.executable).parent
    done = run(wrong, programs, JOB_COMPLETION_INDEX="0", HOME=str(tmp_path))
    assert [done.returncode] == rule["onExitCodes"]["values"], done.stderr
