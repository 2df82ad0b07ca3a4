"""Deltas that are made in buckets and read from there, as receivers find them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.delta_layout import apply_delta, bytes_of, changed, stored, write_full
from tests.emulators.buckets import Bucket

LIKE = {"a": np.arange(60_000, dtype="f4").reshape(200, 300), "b": np.arange(9, dtype="i4")}


def fetched(bucket: Bucket, name: str, folder: Path) -> Path:
    """The folder of a version, downloaded object by object."""
    place = folder / name
    place.mkdir(parents=True)
    store = bucket.store()
    for page in store.list(prefix=name):
        for one in page:
            data = bytes(store.get(one["path"]).bytes())
            (place / one["path"].rpartition("/")[2]).write_bytes(data)
    return place


@pytest.mark.parametrize(
    "kind",
    [
        "s3_bucket",
        "gcs_bucket",
        pytest.param("moto_bucket", marks=pytest.mark.xdist_group("moto")),
        pytest.param("azurite_bucket", marks=pytest.mark.xdist_group("azurite")),
    ],
)
def test_a_version_in_a_bucket(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bucket: Bucket = request.getfixturevalue(kind)
    states = [bytes_of(LIKE)]
    for seed in (1, 2):
        states.append(changed(states[-1], 0.01, seed))
    places = [write_full(tmp_path / f"v{n}", state, LIKE) for n, state in enumerate(states)]
    reshard.convert(places[0], f"{bucket.url}/v0")
    urls = [f"{bucket.url}/weight_v{n:06d}" for n in (1, 2)]
    reshard.delta(f"{bucket.url}/v0", places[1], urls[0])
    reshard.delta(places[1], places[2], urls[1], encoding="overwrite", file_bytes=10)
    assert apply_delta(fetched(bucket, "weight_v000001", tmp_path), states[0]) == states[1]
    assert apply_delta(fetched(bucket, "weight_v000002", tmp_path), states[1]) == states[2]
    reshard.apply(f"{bucket.url}/v0", urls, tmp_path / "served")
    assert stored(tmp_path / "served") == states[2]
    reshard.apply(places[0], urls, f"{bucket.url}/served", to="orbax", mesh="model=2")
    assert not reshard.verify(tmp_path / "served", f"{bucket.url}/served").differences
    assert not reshard.verify(f"{bucket.url}/v0", deltas=urls).differences
    with pytest.raises(reshard.TargetExistsError):
        reshard.delta(places[1], places[2], urls[1])
