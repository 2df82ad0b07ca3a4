"""What checkpoints of TensorFlow and of torch's DCP hold, and how a server lists them."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

TABLE = np.arange(400, dtype=np.float32).reshape(20, 20)
TREE = {"model": {"table": TABLE, "bias": np.ones(7, np.int32)}}
TENSORFLOW: dict[str, Any] = {
    "to": "tensorflow",
    "layout": {"partitions": [{"match": "table$", "fixed_shards": 3}]},
}
ENDINGS = [f".data-{n:05d}-of-00003" for n in range(3)] + [".index", ".slices.json"]


def listed(client: httpx.Client, **query: Any) -> dict[str, Any]:
    """By path; a slow machine tells them in several pages."""
    found, token = dict[str, Any](), dict[str, str]()
    while True:
        answer = client.get("/v1/checkpoints", params={"root": "data", **query, **token})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found |= {one["path"]: one for one in page["checkpoints"]}
        if page["next_page_token"] is None:
            return found
        token = {"page_token": page["next_page_token"]}
