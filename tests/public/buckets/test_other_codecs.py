"""What only TensorStore decodes is read by this project: from every cloud, as whoever it is, of the version that was listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import reshard
from reshard.errors import CorruptError, SourceChangedError
from tests.emulators.buckets import SECRETS, Bucket
from tests.equal import assert_same
from tests.formats.orbax.by_hand import sharded, write_item, zarr2, zarr3
from tests.public.buckets.uploads import upload

SERVERS = [
    pytest.param("s3_bucket", id="S3"),
    pytest.param("gcs_bucket", id="GCS"),
    pytest.param("moto_bucket", id="moto", marks=pytest.mark.xdist_group("moto")),
    pytest.param("azurite_bucket", id="Azurite", marks=pytest.mark.xdist_group("azurite")),
]
ARRAY = np.arange(70, dtype=np.float32).reshape(7, 10)
ARRAYS: dict[str, Any] = {
    "columns": (ARRAY, zarr2((4, 4), order="F")),
    "bz2": (ARRAY, zarr2((4, 4), compressor={"id": "bz2", "level": 1})),
    "nested": (ARRAY, zarr3((8, 8), sharded((4, 4), sharded((2, 2))))),
    "transposed": (
        ARRAY,
        zarr3((4, 4), {"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"),
    ),
}


def in_bucket(bucket: Bucket, folder: Path, **how: Any) -> str:
    return upload(bucket, Path(write_item(folder / "local", ARRAYS, **how)), "run/7")


def assert_arrays(found: Any) -> None:
    assert sorted(found) == sorted(ARRAYS)
    for name, (array, _) in ARRAYS.items():
        assert_same(found[name], array, name)


@pytest.mark.parametrize("ocdbt", [False, True], ids=["plain", "OCDBT"])
@pytest.mark.parametrize("lent", SERVERS)
def test_it_is_read_from_every_cloud(
    lent: str, ocdbt: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = in_bucket(request.getfixturevalue(lent), tmp_path, ocdbt=ocdbt)
    found = reshard.inspect(url)
    assert {one.encoding.compressor for one in found.tensors.values()} == {"none", "tensorstore"}
    assert_arrays(reshard.restore(url))
    reshard.convert(url, tmp_path / "out", workers=1)
    assert reshard.verify(tmp_path / "out", url).differences == 0
    assert_arrays(reshard.restore(tmp_path / "out"))


def test_chunks_that_hold_the_fill_value_may_be_missing(gcs_bucket: Bucket, tmp_path: Path) -> None:
    array = np.zeros((8, 8), np.float32)
    array[0, 0] = 1
    arrays = {"x": (array, zarr3((8, 8), sharded((4, 4), sharded((2, 2)))))}
    local = write_item(tmp_path / "local", arrays, store_array_data_equal_to_fill_value=False)
    assert_same(reshard.restore(upload(gcs_bucket, Path(local), "c"))["x"], array)


@pytest.mark.parametrize("lent", SERVERS[:2])
def test_settings_of_one_bucket_hold(
    lent: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint and credentials from the file that ``RESHARD_BUCKETS`` names, and none in the environment."""
    bucket: Bucket = request.getfixturevalue(lent)
    url = in_bucket(bucket, tmp_path)
    for name in bucket.environment:
        monkeypatch.delenv(name)
    server = bucket.emulator.url
    options = {
        "s3": f'endpoint = "{server}"\naccess_key_id = "somebody"\nsecret_access_key = "{SECRETS["s3"]}"\nregion = "eu-west-3"\n',
        "gs": f'base_url = "{server}"\nbearer_token = "{SECRETS["gs"]}"\n',
    }  # fmt: skip
    file = tmp_path / "buckets.toml"
    file.write_text(f'["{bucket.url}"]\n{options[bucket.scheme]}')
    monkeypatch.setenv("RESHARD_BUCKETS", str(file))
    bucket.emulator.log.clear()
    assert_arrays(reshard.restore(url))
    wanted = "somebody" if bucket.scheme == "s3" else SECRETS["gs"]
    assert {wanted in one.headers["authorization"] for one in bucket.emulator.log.requests} == {
        True
    }


def test_a_chunk_that_changes_is_refused(gcs_bucket: Bucket, tmp_path: Path) -> None:
    opened = reshard.open_checkpoint(in_bucket(gcs_bucket, tmp_path))
    data = bytes(obstore.get(gcs_bucket.store(), "run/7/columns/0.0").bytes())
    obstore.put(gcs_bucket.store(), "run/7/columns/0.0", data[::-1], use_multipart=False)
    with pytest.raises(SourceChangedError, match="changed after it was first looked at"):
        opened.restore(workers=1)


def test_each_chunk_is_asked_for_once(gcs_bucket: Bucket, tmp_path: Path) -> None:
    opened = reshard.open_checkpoint(in_bucket(gcs_bucket, tmp_path))
    gcs_bucket.emulator.log.clear()
    opened.restore(workers=1)
    asked = gcs_bucket.emulator.log.requests
    assert {one.operation for one in asked} == {"get"}
    chunks = sorted(one.key.removeprefix("run/7/") for one in asked)
    assert len(set(chunks)) == len(chunks) == 3 * (2 * 3) + 1 * 2
    assert all(one.headers["if-match"] for one in asked)


def test_a_damaged_chunk_is_named(gcs_bucket: Bucket, tmp_path: Path) -> None:
    url = in_bucket(gcs_bucket, tmp_path)
    obstore.put(gcs_bucket.store(), "run/7/bz2/0.1", b"damaged", use_multipart=False)
    with pytest.raises(
        CorruptError,
        match=r"tensor 'bz2', chunk \[0, 1\]: TensorStore cannot decode it: .*stored in gs://test-\d+/run/7/bz2/0\.1, 7 bytes",
    ):
        reshard.restore(url)


def test_numbered_manifests_are_read(gcs_bucket: Bucket, tmp_path: Path) -> None:
    """TensorStore decodes them from copies in memory, too."""
    import tensorstore as ts

    local = Path(write_item(tmp_path / "local", {"x": (ARRAY, zarr2((4, 4)))}, ocdbt=True))
    kept = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{local}/"}).result()
    values = {key: kept.read(key).result().value for key in kept.list().result()}
    (local / "manifest.ocdbt").unlink()
    spec = {"driver": "ocdbt", "base": f"file://{local}/", "config": {"manifest_kind": "numbered"}}
    numbered = ts.KvStore.open(spec).result()
    for key, value in values.items():
        numbered.write(key, value).result()
    assert list(local.glob("manifest.0*"))
    assert_same(reshard.restore(upload(gcs_bucket, local, "c"))["x"], ARRAY)
