"""docs/how-to/buckets.md: its commands run on the emulators, and its file of settings is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.storage.buckets.clients import BucketSettings, settings_for
from tests.docs.page import code_of
from tests.docs.run_page import DOCS, run_page
from tests.emulators.buckets import Bucket
from tests.orbax_trees import save_pytree

PAGE = DOCS / "how-to" / "buckets.md"


def test_the_commands_run(gcs_bucket: Bucket, s3_bucket: Bucket, tmp_path: Path) -> None:
    gcs_bucket.emulator.objects.create_bucket("my-bucket")
    s3_bucket.emulator.objects.create_bucket("other-bucket")
    saved = save_pytree(tmp_path / "ckpt/1000", {"kernel": np.arange(64.0).reshape(8, 8)})
    reshard.convert(saved, "gs://my-bucket/run/1000")
    (tmp_path / "serving.yaml").write_text(
        "mesh: {axes: [model], shape: [2]}\nrules: [{match: kernel, axes: [model]}]\n"
    )
    run_page(PAGE, tmp_path, skip=["pip install"])
    assert reshard.verify("s3://other-bucket/served/1000", saved).differences == 0


def test_the_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = code_of(PAGE, "toml")
    (tmp_path / "minio").write_text("s3cret")
    (tmp_path / "buckets.toml").write_text(
        text.replace("/run/secrets/minio", str(tmp_path / "minio"))
    )
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "buckets.toml"))
    assert dict(settings_for("s3://my-bucket/run").options)["secret_access_key"] == "s3cret"
    assert settings_for("gs://my-bucket/slow/run").request_timeout_s == 600
    assert settings_for("gs://my-bucket/slower") == BucketSettings()


def test_the_default_times_are_those_of_the_page() -> None:
    rows = [
        line.split("|") for line in PAGE.read_text("utf-8").splitlines() if "_timeout_s` |" in line
    ]
    told = {row[1].strip(" `"): float(row[2]) for row in rows}
    defaults = BucketSettings()
    assert told == {
        "request_timeout_s": defaults.request_timeout_s,
        "retry_timeout_s": defaults.retry_timeout_s,
    }
