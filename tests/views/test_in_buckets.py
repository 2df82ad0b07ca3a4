"""A view of a checkpoint in a bucket: the bytes that were listed, or an error."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest

import reshard
from reshard.errors import MissingError, SourceChangedError
from tests.emulators.buckets import Bucket
from tests.views.sources import MAP, SIZES, save_source


def test_objects_that_change_or_go_are_never_mixed(s3_bucket: Bucket, tmp_path: Path) -> None:
    local = save_source(tmp_path / "source")
    url = f"{s3_bucket.url}/source"
    store = s3_bucket.store()
    objects = {
        f"source/{p.relative_to(local)}": p.read_bytes() for p in local.rglob("*") if p.is_file()
    }
    for key, data in objects.items():
        obstore.put(store, key, data)
    options = {"map": MAP, "sizes": SIZES}
    view = reshard.open_view(url, **options)
    file = view.files["model.safetensors"]
    with reshard.open_view(local, **options) as expected:
        assert b"".join(file.read()) == b"".join(expected.files[file.path].read())
    assert reshard.open_view(url, **options).revision == view.revision
    for key, data in objects.items():
        obstore.put(store, key, data + b"\n")
    with pytest.raises(SourceChangedError, match="was changed since the view of it was planned"):
        list(file.read())
    for key in objects:
        obstore.delete(store, key)
    with pytest.raises(MissingError, match="source is not there any more"):
        list(file.read())
