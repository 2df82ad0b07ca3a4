"""Safetensors and state dicts by HTTP: files and folders with an index as the source, and links that lead out of the roots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from tests.formats.safetensors.build import TREE, file_of, sharded, snapshot_of
from tests.peft_files import adapter_in
from tests.server.asking import ask, converted
from tests.server.live import Live, live
from tests.state_files import write_state

INDEX = "model.safetensors.index.json"
STATE = "data/old/run/checkpoint-20"
FORMS = ["data/one.safetensors", f"data/sharded/{INDEX}", STATE]
KINDS = dict(zip(FORMS, ("safetensors", "safetensors", "torch"), strict=True))
LAYOUT = {
    "mesh": {"axes": ["model"], "shape": [4]},
    "rules": [{"match": "weight", "axes": ["model"]}],
    "unmatched": "replicate",
}
EMBED = "model.embed.weight"
WEIGHTS = {"weight": np.asfortranarray(np.arange(400, dtype=np.float32).reshape(20, 20))}
TREES: dict[str, dict[str, Any]] = dict(
    zip(FORMS, ({EMBED: TREE[EMBED], **TREE},) * 2 + (WEIGHTS,), strict=True)
)


def quantised(folder: Path) -> None:
    """Codes whose blocks only a config tells, and a config outside of the root, where no request may look."""
    folder.mkdir()
    codes = np.ones((64, 32), ml_dtypes.float8_e4m3fn)
    tensors = {"up.weight": codes, "up.weight_scale_inv": np.ones((1, 1), np.float32)}
    file_of(folder, save(tensors), "model.safetensors")
    said = {"quantization_config": {"weight_block_size": [128, 128]}}
    outside = folder.parent.parent / "config.json"
    outside.write_text(json.dumps(said))
    (folder / "config.json").symlink_to(outside)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has one file, a folder with an index, and a repository of Hugging Face's cache.

    Its root ``other`` is a folder inside such a repository, so that the blobs are outside of it.
    """
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    data.mkdir()
    file_of(data, save(TREE), "one.safetensors")
    sharded(data / "sharded")
    snapshot_of(sharded(folder / "hf"), data / "models--a--b")
    reshard.save(data / "orbax", {"w": np.arange(4)})
    sharded(data / "linked")
    quantised(data / "fp8")
    secret = (data / "linked" / "model-00002-of-00002.safetensors").rename(folder / "secret")
    (data / "linked" / "model-00002-of-00002.safetensors").symlink_to(secret)
    for step in (10, 20):
        write_state(data / "old" / "run" / f"checkpoint-{step}" / "pytorch_model.bin", WEIGHTS)
    write_state(folder / "secret.bin", WEIGHTS)
    for name in ("linked.pt", "linked/pytorch_model.bin"):
        (data / "old" / name).parent.mkdir(exist_ok=True)
        (data / "old" / name).symlink_to(folder / "secret.bin")
    snapshot = snapshot_of(sharded(folder / "hf2"), folder / "models--c--d")
    with live(folder, "--root", f"other={snapshot.parent}", requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


@pytest.mark.parametrize("source", FORMS)
def test_read_planned_converted_and_verified(client: httpx.Client, source: str) -> None:
    found = ask(client, "/v1/checkpoints:inspect", checkpoint=source)
    assert (found["uri"], found["format"]) == (source, KINDS[source])
    name, array = next(iter(TREES[source].items()))
    read = client.get(
        "/v1/tensors", params={"checkpoint": source, "name": name, "slice": "3:5,1:4"}
    )
    assert (read.status_code, read.content) == (200, array[3:5, 1:4].tobytes())
    shard = client.get("/v1/tensors", params={"checkpoint": source, "shard": 1, "layout": json.dumps(LAYOUT)})  # fmt: skip
    assert shard.status_code == 200, shard.text
    target = f"data/out-{Path(source).stem}"
    asked = {"source": source, "target": target, "to": "orbax", "layout": LAYOUT}
    assert ask(client, "/v1/plans", **asked)["source"] == source
    ended = converted(client, **asked, verify="readback")
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    verified = ask(client, "/v1/checkpoints:verify", checkpoint=source, other=target)
    assert (verified["a"], verified["b"], verified["differences"]) == (source, target, 0)
    assert len(verified["tensors"]) == len(TREES[source])


def test_options_of_a_format_reach_the_target(client: httpx.Client, server: Live) -> None:
    asked = {"source": "data/sharded", "target": "data/made/ranks", "files": "ranks", "layout": LAYOUT, "file_names": "r{rank}.safetensors"}  # fmt: skip
    assert converted(client, **asked)["state"] == "succeeded"
    made = server.log.parent / "data" / "made" / "ranks"
    assert sorted(p.name for p in made.glob("*.safetensors")) == [
        f"r{n}.safetensors" for n in range(4)
    ]
    again = converted(client, **asked, labels={"again": "1"})
    assert again["state"] == "succeeded" and again["result"][0]["already_done"]


def test_what_an_index_does_not_list_is_told_and_can_be_included(
    client: httpx.Client, server: Live
) -> None:
    folder = sharded(server.log.parent / "data" / "beside")
    file_of(folder, save({"more": TREE["flag"]}), "projector.safetensors")
    checkpoint = {"checkpoint": "data/beside"}
    asked = {"source": "data/beside", "target": "data/out-beside", "to": "orbax"}
    more = {"unlisted": "include"}
    told = (
        f"data/beside/{INDEX} does not list 1 safetensors file beside it, left out here: projector.safetensors (1 tensor: "
        "'more'); take them with (unlisted=\"include\")"
    )
    (report,) = converted(client, **{**asked, "target": "data/out-listed"})["result"]
    assert told in report["warnings"]
    for path, body in (
        ("/v1/checkpoints:inspect", checkpoint),
        ("/v1/checkpoints:verify", checkpoint),
        ("/v1/plans", asked),
    ):
        assert told in ask(client, path, **body)["warnings"]
        included = ask(client, path, **body, **more)
        assert told not in included["warnings"]
        assert "more" in {t.get("name") or t["target"] for t in included["tensors"]}
    ended = converted(client, **{**asked, **more})
    assert (ended["state"], ended["request"]["unlisted"]) == ("succeeded", "include")
    verified = ask(client, "/v1/checkpoints:verify", **checkpoint, other="data/out-beside", **more)
    assert (verified["differences"], len(verified["tensors"])) == (0, len(TREE) + 1)
    read = client.get("/v1/tensors", params={**checkpoint, "name": "more"})
    assert read.status_code == 404
    read = client.get("/v1/tensors", params={**checkpoint, **more, "name": "more"})
    assert read.content == TREE["flag"].tobytes()
    refused = client.post("/v1/checkpoints:inspect", json={**checkpoint, "unlisted": "all"})
    assert refused.status_code == 422


def test_the_files_of_a_model_are_read_below_a_root(client: httpx.Client, server: Live) -> None:
    model = server.log.parent / "data" / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    asked = {"source": "data/sharded", "target": "data/made/model", "config": "data/model"}
    answer = client.post("/v1/plans", json=asked)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(
        "data/model/config.json does not fit the target: model type 'llama' asks for"
    )
    (model / "config.json").write_text('{"model_type": "own"}')
    ended = converted(client, **asked)
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    assert "data/model/config.json is of model type 'own'" in ended["result"][0]["warnings"][0]
    made = server.log.parent / "data" / "made" / "model"
    assert (made / "config.json").read_text() == '{"model_type": "own"}'
    for config in ("/etc", "nowhere/model", "data/../model"):
        answer = client.post("/v1/conversions", json={**asked, "config": config})
        assert (answer.status_code, answer.json()["field"]) in ((422, "/config"), (404, "/config"), (403, "/config")), answer.text  # fmt: skip


def test_an_option_of_another_format_is_refused(client: httpx.Client) -> None:
    asked = {"source": "data/sharded", "target": "data/made/other", "compression": "zstd"}
    answer = client.post("/v1/plans", json=asked)
    assert answer.status_code == 422
    assert "compression is an option of Orbax targets" in answer.json()["detail"]
    answer = client.post("/v1/plans", json={**asked, "file_names": "../{rank}.safetensors"})
    assert answer.status_code == 422
    assert "expected the name of a file that ends in .safetensors" in answer.text


def test_listed_with_their_format(client: httpx.Client) -> None:
    found = client.get("/v1/checkpoints", params={"root": "data"}).json()["checkpoints"]
    kinds = {each["path"]: each["kind"] for each in found}
    assert kinds["data/sharded"] == kinds["data/models--a--b/snapshots/1f"] == "safetensors"
    assert (kinds["data/orbax"], kinds["data/old/run"]) == ("orbax", "steps")


def test_links_to_the_blobs_of_a_repository_below_the_root_are_followed(
    client: httpx.Client,
) -> None:
    asked = {"checkpoint": "data/models--a--b/snapshots/1f", "name": EMBED}
    assert client.get("/v1/tensors", params=asked).content == TREE[EMBED].tobytes()


def test_links_out_of_the_root_are_refused(client: httpx.Client, server: Live) -> None:
    remedy = "make a folder above the links' files a storage root, or copy the files into this one"
    asked = {"checkpoint": "other/1f", "name": EMBED}
    read = client.get("/v1/tensors", params=asked)
    inspected = client.post("/v1/checkpoints:inspect", json={"checkpoint": "other/1f"})
    planned = client.post("/v1/plans", json={"source": "other/1f", "target": "data/none"})
    made = client.post("/v1/conversions", json={"source": "other/1f", "target": "data/none"})
    for answer in (read, inspected, planned, made):
        assert (answer.status_code, answer.json()["remedy"]) == (422, remedy)
        assert answer.json()["detail"].startswith(
            "'other/1f' holds the link 'config.json', which leads"
        )
        assert str(server.log.parent) not in answer.text


def test_a_link_to_a_file_out_of_the_root_is_not_there(client: httpx.Client) -> None:
    body = {"checkpoint": "other/1f/model-00001-of-00002.safetensors"}
    answer = client.post("/v1/checkpoints:inspect", json=body)
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith(f"there is nothing at '{body['checkpoint']}'")


def test_a_folder_with_another_link_out_is_refused(client: httpx.Client, server: Live) -> None:
    answer = client.post("/v1/checkpoints:inspect", json={"checkpoint": "data/linked"})
    assert answer.status_code == 422
    assert "is a symbolic link to a place outside of data/linked" in answer.json()["detail"]
    assert str(server.log.parent) not in answer.text


def test_quantised_weights_stay_with_their_scales(client: httpx.Client) -> None:
    text = "fp8, a scale for each: 1 weight with scales, 0 as they are"
    assert ask(client, "/v1/checkpoints:inspect", checkpoint="data/fp8")["quantized"] == text
    body = {"source": "data/fp8", "target": "data/bf16", "to": "orbax"}
    assert ask(client, "/v1/plans", **body)["quantized"] == text


def test_state_dicts_of_torch_are_only_read_and_never_out_of_a_root(client: httpx.Client) -> None:
    answer = client.post("/v1/plans", json={"source": STATE, "target": "data/made/x"})
    assert answer.status_code == 422
    assert "torch state dicts are only read" in answer.text
    for source in ("data/old/linked.pt", "data/old/linked"):
        answer = client.post("/v1/checkpoints:inspect", json={"checkpoint": source})
        assert 400 <= answer.status_code < 500
        assert "secret" not in answer.text


def test_weights_are_dequantised_and_paths_of_operands_stay_in_the_roots(
    client: httpx.Client, server: Live
) -> None:
    folder = server.log.parent / "data" / "codes"
    folder.mkdir()
    tensors = {
        "up.weight": np.ones((128, 32), ml_dtypes.float8_e4m3fn),
        "up.weight_scale_inv": np.full((1, 1), 3, np.float32),
    }
    file_of(folder, save(tensors), "model.safetensors")
    asked = {"source": "data/codes", "target": "data/out-weights"}
    how = {"dequantize": "bfloat16"}
    assert (
        "4.00 KiB → 8.00 KiB as bfloat16" in ask(client, "/v1/plans", **asked, **how)["quantized"]
    )
    seen = ask(client, "/v1/checkpoints:inspect", checkpoint="data/codes", **how)
    assert [t["dtype"] for t in seen["tensors"]] == ["bfloat16"]
    ended = converted(client, **asked, **how, to="orbax")
    assert (ended["state"], ended["request"]["dequantize"]) == ("succeeded", "bfloat16")
    (report,) = client.get(ended["result_url"]).json()["result"]
    assert report["tensors"][0]["dequantized"] == "rounded"
    pair = {"checkpoint": "data/codes", "other": "data/out-weights"}
    assert ask(client, "/v1/checkpoints:verify", **pair, **how)["differences"] == 0
    adapter_in(server.log.parent / "data" / "adapter", (128, 32))
    asked_more = {**asked, **how, "target": "data/out-merged", "lora": ["data/adapter=0.5"]}
    assert converted(client, **asked_more)["state"] == "succeeded"
    merged = reshard.restore(server.log.parent / "data" / "out-merged")["up.weight"]
    assert [merged[0, 0], merged[1, 0]] == [4, 3]
    # The record of the other one may name any place of this host; only dequantize, which names none, is taken from it.
    assert ask(client, "/v1/checkpoints:verify", **pair)["differences"] == 0
    of_merged = {**pair, "other": "data/out-merged"}
    assert ask(client, "/v1/checkpoints:verify", **of_merged)["differences"] > 0
    for path, body in (("conversions", asked), ("plans", asked), ("checkpoints:verify", pair)):
        for number, lora in enumerate((["data/codes", "secret/b=0.5"], ["data/../../c"])):
            refused = client.post(f"/v1/{path}", json={**body, "lora": lora})
            assert refused.status_code in (403, 404, 422), refused.text
            field = refused.json().get("field") or refused.json()["errors"][0]["field"]
            assert field == f"/lora/{1 - number}"
    refused = client.post("/v1/conversions", json={**asked, "quantize_like": "secret/b"})
    assert "/quantize_like" in refused.text
