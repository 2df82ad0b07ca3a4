"""The real transformers and torch read the safetensors files that were written straight into a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reshard
from tests.emulators.buckets import Bucket
from tests.oracles.oracle import Oracle
from tests.public.buckets.uploads import download, upload

pytestmark = pytest.mark.xdist_group("torch")


@pytest.mark.parametrize("files", [{}, {"file_bytes": 20_000}], ids=["one", "several"])
@pytest.mark.parametrize("lent", ["s3_bucket", "gcs_bucket"])
def test_a_model_computes_the_same_after_it_went_through_buckets(
    lent: str, files: dict[str, Any], torch: Oracle, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    original = tmp_path / "original"
    logits = torch.ask("save_model", kind="llama", folders={str(original): "50KB"})
    source = upload(bucket, original, "model/original", marker=False)
    target = f"{bucket.url}/model/new"
    reshard.convert(
        source, target, workers=2, to="safetensors", files="shards", carry=True, **files
    )
    assert reshard.verify(target, source).differences == 0
    local = download(bucket, "model/new", tmp_path / "new")
    assert (len(list(local.glob("*.safetensors"))) > 1) == bool(files)
    found = torch.ask("load_model", folder=str(local))
    assert found == {"logits": logits, "missing_keys": [], "unexpected_keys": []}
    tensors = [one for file in torch.ask("stored", folder=str(local)).values() for one in file]
    assert sorted(tensors) == sorted(reshard.inspect(source).tensors)
