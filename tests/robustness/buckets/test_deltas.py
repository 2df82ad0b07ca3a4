"""Deltas that are killed between two requests to a bucket, and two processes that publish one version.

A sample of the requests; all of them in a campaign.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from tests.campaigns import every
from tests.delta_layout import apply_delta, bytes_of, changed, stored, write_full
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.robustness.buckets.cases import emptied, files_of, keys
from tests.robustness.buckets.children import Awaited, start_call, without_clock

EVERY = every(13)
"""So many requests apart are those at which a run is killed; fewer in a campaign."""

LIKE = {f"t{n}": np.arange(9000 + n, dtype="f4") for n in range(3)}
OLD = bytes_of(LIKE)
NEW = changed(OLD, 0.05, 1)
NAME = "weight_v000001"
INDEX = "model.safetensors.index.json"
OPTIONS: dict[str, Any] = {"file_bytes": 2000, "workers": 1, "base_version": 0}


@pytest.fixture
def versions(tmp_path: Path) -> tuple[str, str]:
    """Two full versions on the disk."""
    return (
        str(write_full(tmp_path / "v0", OLD, LIKE)),
        str(write_full(tmp_path / "v1", NEW, LIKE)),
    )


def killed_at(number: int, bucket: Bucket, name: str, *arguments: Any, **options: Any) -> int:
    """The exit code of a call that is killed once the request of that number was answered."""
    awaited = Awaited()
    bucket.emulator.faults.add(Call(awaited.kill, done=True), nth=number)
    child = start_call(bucket.environment, name, arguments, options, without_clock)
    awaited.is_this(child)
    code = child.ended()
    bucket.emulator.faults.clear()
    return code


def is_published(bucket: Bucket, folder: Path) -> bool:
    """Whether the version is there for receivers, which can apply it then."""
    if f"run/{NAME}/{INDEX}" not in keys(bucket):
        return False
    files_of(bucket, folder / NAME, f"run/{NAME}")
    return apply_delta(folder / NAME, OLD) == NEW


@pytest.mark.usefixtures("_small")
def test_a_delta_that_is_killed_at_a_request_is_made_anew(
    bucket: Bucket, versions: tuple[str, str], tmp_path: Path
) -> None:
    target = f"{bucket.url}/run/{NAME}"
    reshard.delta(*versions, target, **OPTIONS)
    requests, expected, index = bucket.emulator.log.count(), set(keys(bucket)), put_of_index(bucket)
    for number in range(2, requests + 1, EVERY):
        emptied(bucket)
        assert killed_at(number, bucket, "delta", *versions, target, **OPTIONS) == -signal.SIGKILL
        assert is_published(bucket, tmp_path / f"killed {number}") == (number >= index), number
        if number < index:
            reshard.delta(*versions, target, **OPTIONS)
        reshard.clean_versions(f"{bucket.url}/run", 1)
        assert is_published(bucket, tmp_path / str(number)), number
        assert set(keys(bucket)) == expected, number


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("way", ["delta", "clean"])
def test_a_version_whose_index_is_there_is_finished_and_not_made_anew(
    way: str, bucket: Bucket, versions: tuple[str, str], tmp_path: Path
) -> None:
    """Receivers may have read it: they know no other mark."""
    folder, target = f"{bucket.url}/run", f"{bucket.url}/run/{NAME}"
    reshard.delta(*versions, target, **OPTIONS)
    expected, index = set(keys(bucket)), put_of_index(bucket)
    emptied(bucket)
    assert killed_at(index, bucket, "delta", *versions, target, **OPTIONS) == -signal.SIGKILL
    seen = bucket.emulator.objects.get(bucket.name, f"run/{NAME}/{INDEX}")
    if way == "delta":
        with pytest.raises(reshard.TargetExistsError, match="receivers may have read it"):
            reshard.delta(*versions, target, **OPTIONS)
    else:
        reshard.clean_versions(folder, 1, dry_run=True)
        assert f"run/{NAME}/commit_success.txt" not in keys(bucket)
        assert reshard.clean_versions(folder, 1).removed == ()
    assert bucket.emulator.objects.get(bucket.name, f"run/{NAME}/{INDEX}") == seen
    assert set(keys(bucket)) == expected
    assert is_published(bucket, tmp_path / "downloaded")


def put_of_index(bucket: Bucket) -> int:
    """The number of the request that puts the index, of those that were sent."""
    (number,) = (
        number
        for number, sent in enumerate(bucket.emulator.log.requests, 1)
        if (sent.operation, sent.key) == ("put", f"run/{NAME}/{INDEX}")
    )
    return number


@pytest.mark.usefixtures("_small")
def test_an_apply_that_is_killed_at_a_request_resumes(
    bucket: Bucket, versions: tuple[str, str], tmp_path: Path
) -> None:
    base, delta = f"{bucket.url}/v0", f"{bucket.url}/{NAME}"
    reshard.convert(versions[0], base)
    reshard.delta(*versions, delta, **OPTIONS)
    options = {"workers": 1}
    bucket.emulator.log.clear()
    reshard.apply(base, [delta], tmp_path / "undisturbed", **options)
    requests = bucket.emulator.log.count()
    for number in range(2, requests + 1, EVERY):
        target = tmp_path / str(number) / "served"
        arguments = (base, [delta], str(target))
        assert killed_at(number, bucket, "apply", *arguments, **options) == -signal.SIGKILL
        assert not target.exists()
        reshard.apply(base, [delta], target, **options)
        assert stored(target) == NEW
        assert [one.name for one in target.parent.iterdir()] == [target.name]


def test_two_processes_publish_one_version(
    bucket: Bucket, versions: tuple[str, str], tmp_path: Path
) -> None:
    places = {str(tmp_path / "run" / NAME): {}, f"{bucket.url}/run/{NAME}": bucket.environment}
    for target, environment in places.items():
        children = [
            start_call(environment, "delta", (*versions, target), OPTIONS) for _ in range(2)
        ]
        lost, won = sorted((child.answer() for child in children), key=lambda told: told == "done")
        assert won == "done"
        assert lost.split(":")[0] in ("TargetBusyError", "TargetExistsError"), lost
        assert target in lost
    assert [one.name for one in (tmp_path / "run").iterdir()] == [NAME]
    assert apply_delta(tmp_path / "run" / NAME, OLD) == NEW
    assert is_published(bucket, tmp_path / "downloaded")
    assert not [key for key in keys(bucket) if not key.startswith(f"run/{NAME}/")]
