"""A whole layout pulled by HTTP onto eight simulated devices, each exactly its shard."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from tests.server.api.tensors.large import LARGE
from tests.server.live import Live

URL = "/v1/tensors"
MIB = 1 << 20
LAYOUT = {
    "mesh": {"axes": ["data", "model"], "shape": [4, 2]},
    "rules": [
        {"match": "kernel$", "axes": ["model", "data"]},
        {"match": "layers/0$", "axes": [["data", "model"]]},
        {"match": "^w$", "axes": [None, ["model", "data"]]},
    ],
}


def pulled(client: httpx.Client, shard: int, **params: str) -> dict[str, np.ndarray]:
    given = {"layout": json.dumps(LAYOUT), **params, "shard": str(shard)}
    found = client.get(URL, params=given)
    assert found.status_code == 200, found.text
    assert f"shard-{shard}-of-8.safetensors" in found.headers["Content-Disposition"]
    arrays = {}
    for name, tensor in safetensors.deserialize(found.content):
        dtype = ml_dtypes.bfloat16 if tensor["dtype"] == "BF16" else np.float32
        arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return arrays


def read_bytes(served: Live) -> int:
    """What the server's process has read from files so far, as the kernel counts it."""
    counts = Path(f"/proc/{served.process.pid}/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


def test_every_device_pulls_no_more_than_its_shard(served: Live, client: httpx.Client) -> None:
    pulled(client, 0, checkpoint="data/raw")
    before = read_bytes(served)
    pulled(client, 0, checkpoint="data/raw", select="^w$", cast="w=bfloat16")
    one = read_bytes(served) - before
    assert LARGE.nbytes // 8 <= one <= LARGE.nbytes // 8 + MIB // 4
    before = read_bytes(served)
    files = [pulled(client, n, checkpoint="data/raw") for n in range(8)]
    all_of_them = read_bytes(served) - before
    assert LARGE.nbytes <= all_of_them <= LARGE.nbytes + 8 * MIB // 4
    columns = [files[2 * data + model]["w"] for model in range(2) for data in range(4)]
    assert np.concatenate(columns, axis=1).tobytes() == LARGE.tobytes()


def test_the_real_package_opens_what_was_downloaded(client: httpx.Client, tmp_path: Path) -> None:
    params = {"checkpoint": "data/raw", "shard": "5"}
    file = tmp_path / "shard.safetensors"
    file.write_bytes(client.get(URL, params=params).content)
    np.testing.assert_array_equal(safetensors.numpy.load_file(file)["w"], LARGE[640:768])
    with safetensors.safe_open(file, "numpy") as opened:
        said = json.loads(opened.metadata()["reshard.slices"])
    assert (said["shard"], said["shards"]) == (5, 8)
    assert said["tensors"]["w"] == {
        "full_shape": [1024, 2048], "offset": [640, 0], "shape": [128, 2048], "dtype": "float32",
    }  # fmt: skip


def test_ranges_and_tags_of_a_shard(client: httpx.Client) -> None:
    params = {
        "checkpoint": "data/small",
        "shard": "3",
        "mesh": "data=4,model=2",
        "select": "^params/",
    }
    whole = client.get(URL, params=params)
    tag = whole.headers["ETag"]
    part = client.get(URL, params=params, headers={"Range": "bytes=100-5000", "If-Range": tag})
    assert (part.status_code, part.content) == (206, whole.content[100:5001])
    assert client.get(URL, params=params, headers={"If-None-Match": tag}).status_code == 304
    head = client.head(URL, params=params)
    assert head.headers["Content-Length"] == str(len(whole.content))
