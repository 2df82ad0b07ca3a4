"""docs/how-to/buckets.md: its commands run on the emulators, and its file of settings is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from reshard.storage.buckets.settings import BucketSettings, settings_for
from tests.docs.page import code_of
from tests.docs.run_page import DOCS, run_page
from tests.emulators.buckets import Bucket

PAGE = DOCS / "how-to" / "buckets.md"


def test_the_commands_run(gcs_bucket: Bucket, tmp_path: Path) -> None:
    gcs_bucket.emulator.objects.create_bucket("my-bucket")
    run_page(PAGE, tmp_path, skip=["pip install"])


def test_the_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = code_of(PAGE, "toml")
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
