"""The page of the training loop runs as written, the bucket on an emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.docs.page import steps
from tests.docs.run_page import DOCS, run_steps
from tests.emulators.buckets import Bucket

PAGE = DOCS / "how-to" / "publish-weights-while-training.md"


def with_bucket(text: str | None, bucket: Bucket) -> str | None:
    return None if text is None else text.replace("my-bucket", bucket.name)


def test_the_page_runs_as_written(s3_bucket: Bucket, tmp_path: Path) -> None:
    todo = [
        replace(
            step, text=step.text.replace("my-bucket", s3_bucket.name), shown=with_bucket(step.shown, s3_bucket)
        )
        for step in steps(PAGE.read_text("utf-8"))
    ]  # fmt: skip
    run_steps(PAGE, todo, tmp_path)
    assert sorted(one.name for one in (tmp_path / "served").iterdir()) == ["3", "4", "5"]
