"""docs/how-to/hugging-face-hub.md: its commands run on a loopback hub, and its settings are read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.storage.buckets.errors import OF_HUB
from reshard.storage.hub.client import RETRY_S
from reshard.storage.hub.store import MOST_PAGES
from reshard.storage.location import locate
from tests.docs.page import code_of
from tests.docs.run_page import DOCS, run_page
from tests.emulators.hub import Hub

PAGE = DOCS / "how-to" / "hugging-face-hub.md"


def test_the_commands_run(hub: Hub, tmp_path: Path) -> None:
    names = ("embed", "layers.0.attn", "layers.0.mlp", "norm")
    arrays = {name: np.full((8, 4), number, np.float32) for number, name in enumerate(names)}
    repo = hub.repo("my-org/my-model")
    repo.commit({"model.safetensors": save(arrays), "config.json": b"{}"})
    repo.commit({"README.md": b"second"}, "v2")
    run_page(PAGE, tmp_path, skip=["pip install"])
    assert list(reshard.inspect(tmp_path / "attention").tensors) == ["layers.0.attn"]
    assert reshard.verify(tmp_path / "served", "hf://my-org/my-model").differences == 0
    assert len(hub.asked("hub", "/revision/v2")) == 1


def test_the_settings_are_those_of_a_bucket_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = code_of(PAGE, "toml")
    assert tomllib.loads(text)
    (tmp_path / "buckets.toml").write_text(text)
    for name in ("HF_S3_KEY", "HF_S3_SECRET"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "buckets.toml"))
    assert str(locate("hf://buckets/my-org/run/1000")) == "s3://run/1000"


def test_the_numbers_and_reasons_are_those_of_the_page() -> None:
    text = PAGE.read_text("utf-8")
    assert f"asked again for {RETRY_S:.0f} seconds" in text
    assert f"more than {MOST_PAGES * 1000:,} files" in text
    for code in ("RepoNotFound", "GatedRepo", "RevisionNotFound"):
        assert f"| {OF_HUB[code].reason} |" in text
