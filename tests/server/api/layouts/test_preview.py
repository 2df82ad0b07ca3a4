"""The preview of a layout on a checkpoint: the shards on each device, and tensors that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reshard_server.api.openapi.description import LAYOUT as ANSWER

from tests.server.served import Served

URL = "/v1/layouts:preview"
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [2]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}, {"match": "none", "axes": []}],
    "partitions": [{"match": "bias", "fixed_shards": 4}],
}


def preview(served: Served, who: str = "eve", **members: Any) -> Any:
    body = {"checkpoint": "data/run/1", **members}
    return served.ask("POST", URL, who, json=body)


@pytest.mark.usefixtures("run_of")
def test_shards_and_bytes_of_a_device(served: Served) -> None:
    answer = preview(served, layout=LAYOUT)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    ANSWER.model_validate(found)
    tensors = {t["target"]: t for t in found["tensors"]}
    kernel = tensors["params/kernel"]
    assert (kernel["target_shards"], kernel["target_shard_shape"]) == ([1, 2], [64, 16])
    assert kernel["target_shard_bytes"] == 64 * 16 * 4
    bias = tensors["params/bias"]
    assert (bias["target_shards"], bias["target_shard_shape"]) == ([4], [2])
    assert found["device_bytes"] == 64 * 16 * 4 + 4  # half of the kernel, and the whole step
    assert found["partitioned_bytes"] == 6 * 4
    assert found["warnings"] == ["rules[1] 'none' (layout) matches no tensor"]
    assert (found["source"], found["file"]) == ("data/run/1", "")


@pytest.mark.usefixtures("run_of")
def test_of_a_stored_layout_on_another_mesh(served: Served) -> None:
    served.ask("PUT", "/v1/layouts/serving", json={"layout": LAYOUT})
    found = preview(served, layout="serving@1", mesh="x=8").json()
    kernel = next(t for t in found["tensors"] if t["target"] == "params/kernel")
    assert kernel["target_mesh"] == {"axes": ["x"], "shape": [8]}
    assert found["file"] == "serving@1"


@pytest.mark.usefixtures("run_of")
def test_axes_that_the_mesh_lacks_are_left_out_where_asked(served: Served) -> None:
    refused = preview(served, layout=LAYOUT, mesh="y=8")
    assert refused.status_code == 422
    assert '(missing_axes="replicate")' in refused.json()["detail"]
    found = preview(served, layout=LAYOUT, mesh="y=8", missing_axes="replicate").json()
    kernel = next(t for t in found["tensors"] if t["target"] == "params/kernel")
    assert kernel["target_shards"] == [1, 1]
    assert (
        "the mesh (y=8) has no axis 'x'; what it split is replicated instead" in found["warnings"]
    )


@pytest.mark.parametrize(
    ("members", "status", "field", "words"),
    [
        ({"layout": "none"}, 422, "/layout", "the layout 'none' is not stored"),
        ({"layout": "/etc/passwd"}, 422, "/layout", "the layout '/etc/passwd' is not stored"),
        ({"layout": LAYOUT, "mesh": "x=3"}, 422, "/layout", "'params/kernel'"),
        ({"mesh": "x"}, 422, "/layout", "mesh"),
        ({"checkpoint": "data/none"}, 404, "/checkpoint", "there is nothing at 'data/none'"),
        ({"checkpoint": "other/a"}, 404, "/checkpoint", "there is nothing at 'other/a'"),
        ({"checkpoint": "data/run"}, 422, "/checkpoint", "name one of them: data/run/2"),
        ({"checkpoint": "data/../x"}, 422, "/checkpoint", "it has a name of dots"),
    ],
)
def test_what_does_not_fit(
    served: Served, run_of: Path, members: dict[str, Any], status: int, field: str | None, words: str
) -> None:  # fmt: skip
    answer = preview(served, **members)
    found = answer.json()
    assert answer.status_code == found["status"] == status, found
    assert words in found["detail"]
    assert found.get("field") == field
    assert str(run_of.parent.parent) not in answer.text
