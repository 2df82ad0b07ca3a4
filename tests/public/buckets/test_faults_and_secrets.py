"""Conversions from buckets under faults, and what they leave behind: right results or one clear error, and no secrets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import SECRETS, Bucket
from tests.emulators.faults import BreakAnswer, Disconnect, Refuse
from tests.orbax_trees import save_pytree
from tests.public.buckets.uploads import upload


@pytest.fixture(params=["s3_bucket", "gcs_bucket"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    tree = {f"t{n}": random.standard_normal((64, 128 + n)).astype("float32") for n in range(40)}
    return save_pytree(tmp_path / "saved", tree)


def test_a_tenth_of_all_requests_may_fail(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    url = upload(bucket, local, "run/1")
    faults = bucket.emulator.faults
    rules = [
        faults.add(fault, chance=0.04, times=None, seed=number)
        for number, fault in enumerate(
            [Refuse(answers.SLOW_DOWN), Refuse(answers.INTERNAL_ERROR), Disconnect()]
        )
    ]
    rules.append(faults.add(BreakAnswer(50), operation="get", chance=0.1, times=None, seed=9))
    reshard.convert(url, tmp_path / "out", max_memory="256MiB")
    assert sum(rule.struck for rule in rules) > 3
    faults.clear()
    assert reshard.verify(tmp_path / "out", local).differences == 0


def test_what_stops_midway_resumes_and_no_secret_is_left(
    bucket: Bucket, local: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = upload(bucket, local, "run/1")
    bucket.emulator.log.clear()
    reshard.open_checkpoint(url)
    opening = bucket.emulator.log.count("get")
    bucket.emulator.faults.add(
        Refuse(answers.EXPIRED_TOKEN), operation="get", nth=opening + 3, times=None
    )
    assert run(["convert", url, str(tmp_path / "out")]) == 1
    said = "".join(capfd.readouterr())
    assert "the credentials have expired; renew them and run the same command again" in said
    assert not (tmp_path / "out").exists()
    bucket.emulator.faults.clear()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert run(["convert", url, str(tmp_path / "out"), "--json"]) == 0
    said += "".join(capfd.readouterr())
    left += [path for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (*SECRETS.values(), "key-of-the-s3-tests"):
        assert secret not in said
        assert not [p for p in left if p.exists() and secret.encode() in p.read_bytes()]


def test_a_budget_that_reading_ahead_does_not_fit_is_refused(
    bucket: Bucket, tmp_path: Path
) -> None:
    weights = {"w": np.zeros((2048, 2048), "float32")}
    url = upload(bucket, save_pytree(tmp_path / "saved", weights), "run/1")
    with pytest.raises(reshard.MemoryBudgetError, match="MiB") as error:
        reshard.convert(url, tmp_path / "out", max_memory="16MiB", workers=1)
    smallest = error.value.smallest_bytes
    assert smallest > 16 << 20
    reshard.convert(url, tmp_path / "out", max_memory=smallest, workers=1)
    assert reshard.verify(tmp_path / "out", tmp_path / "saved").differences == 0
