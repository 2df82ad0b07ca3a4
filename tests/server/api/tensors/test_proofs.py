"""Identities and proofs of slices by HTTP."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from reshard_server.api import tensor_source

import reshard
from tests import identity_by_recursion as by_recursion
from tests.server.live import Live, live

URL = "/v1/tensors"
SHAPE = (1500, 1100)
"""6.3 MiB of float32: 4 kept nodes of 750 × 550 elements, 128 tiles."""


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {"w": rng.normal(size=SHAPE).astype(np.float32), "b": np.arange(7)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has a checkpoint with an identity, one without, and a run."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("known", "unknown", "damaged", "run/3"):
        reshard.save(folder / "data" / name, weights())
        if name != "unknown":
            reshard.identify(folder / "data" / name, write=True)
    reshard.convert(folder / "data" / "unknown", folder / "data" / "one.safetensors")
    damaged = folder / "data" / "damaged" / "identity.tree"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    shutil.copytree(folder / "data" / "unknown", folder / "data" / "linked")
    (folder / "secret").write_text('{"format": "secret"}')
    (folder / "data" / "linked" / "identity.json").symlink_to(folder / "secret")
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def root_of(server: Live) -> str:
    path = server.log.parent / "data" / "known" / "identity.json"
    return str(json.loads(path.read_text())["root"])


def proof_of(text: str) -> bytes:
    pairs = [part.split(":") for part in text.split(",")] if text else []
    start = [int(a or 0) for a, _ in pairs] + [0] * (2 - len(pairs))
    stop = [int(b or n) for (_, b), n in zip(pairs, SHAPE, strict=False)]
    found = by_recursion.proof(weights()["w"], tuple(start), (*stop, *SHAPE[len(stop) :]))
    assert found is not None
    return found


def test_the_recorded_identity(server: Live, client: httpx.Client) -> None:
    for query in ({"checkpoint": "data/known"}, {"checkpoint": "data/run", "step": "latest"}):
        found = client.get(f"{URL}/identity", params=query)
        assert (found.status_code, found.headers["Content-Type"]) == (200, "application/json")
        path = server.log.parent / "data" / "known" / "identity.json"
        assert found.content == path.read_bytes()
    asked = {"checkpoint": "data/known", "fields": "root"}
    assert client.get(f"{URL}/identity", params=asked).json() == {"root": root_of(server)}


@pytest.mark.parametrize("part", ["", "0:750,:", ":,550:1100", "0:93,0:1100", "750:,962:1100"])
def test_a_proof(part: str, server: Live, client: httpx.Client) -> None:
    query = {"checkpoint": "data/known", "name": "w", "slice": part}
    found = client.get(f"{URL}/proof", params=query)
    assert found.status_code == 200, found.text
    answer = found.json()
    assert base64.b64decode(answer["proof"]) == proof_of(part)
    assert answer["root"] == root_of(server)
    assert (answer["name"], answer["dtype"], answer["shape"]) == ("w", "float32", list(SHAPE))
    assert answer["top"] == by_recursion.top(weights()["w"]).hex()
    sent = client.get(URL, params=query)
    assert answer["slice"] == sent.headers["X-Reshard-Slice"]
    proof = reshard.SliceProof.from_dict(answer)
    assert proof.to_dict() == answer
    elements = np.frombuffer(sent.content, np.float32).reshape(proof.box.shape)
    proof.check(elements, server.log.parent / "data" / "known", root=root_of(server))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_headers_of_a_slice(method: str, server: Live, client: httpx.Client) -> None:
    """The proof comes along where no elements are read for it, and the slice has one."""
    query = {"checkpoint": "data/known", "name": "w"}
    for part in ("", "0:750,:", ":,550:1100"):
        found = client.request(method, URL, params={**query, "slice": part})
        assert found.headers["X-Reshard-Identity"] == root_of(server)
        assert found.headers["X-Reshard-Proof"] == f":{base64.b64encode(proof_of(part)).decode()}:"
    for more in (
        {"slice": "0:93,:"},
        {"slice": "0:5,:"},
        {"dtype": "bfloat16"},
        {"slice": "3:3,:"},
    ):
        found = client.request(method, URL, params={**query, **more})
        assert (found.status_code, found.headers["X-Reshard-Identity"]) == (200, root_of(server))
        assert "X-Reshard-Proof" not in found.headers
    part = {"Range": "bytes=0-9"}
    found = client.request(method, URL, params=query, headers=part)
    assert found.headers["X-Reshard-Proof"] == "::"
    found = client.request(method, URL, params={"checkpoint": "data/unknown", "name": "w"})
    assert found.status_code == 200
    assert not {"X-Reshard-Identity", "X-Reshard-Proof"} & set(found.headers)


def test_a_long_proof_is_no_header(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = reshard.open_checkpoint(server.log.parent / "data" / "known")
    for most, is_sent in ((44, True), (43, False)):
        monkeypatch.setattr(tensor_source, "LONGEST_PROOF", most)
        headers = tensor_source._identity_headers(opened, opened.stream("w", "0:750"), 64 << 20)
        assert ("X-Reshard-Proof" in headers) == is_sent


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_shard_comes_with_the_recorded_root(
    method: str, server: Live, client: httpx.Client
) -> None:
    for checkpoint, root in (("known", root_of(server)), ("unknown", None)):
        query = {"checkpoint": f"data/{checkpoint}", "shard": 1, "mesh": "x=2"}
        found = client.request(method, URL, params=query)
        assert found.status_code == 200
        assert found.headers.get("X-Reshard-Identity") == root
        assert "X-Reshard-Proof" not in found.headers


def test_what_is_refused(client: httpx.Client) -> None:
    def refused(path: str, **query: str) -> tuple[int, str, str | None]:
        found = client.get(f"{URL}/{path}", params=query)
        problem = found.json()
        return found.status_code, problem["detail"], problem.get("field")

    no_identity = "data/unknown records no identity; record it with reshard identify --write"
    for path, more in (("identity", {}), ("proof", {"name": "w"})):
        assert refused(path, checkpoint="data/unknown", **more) == (404, no_identity, "checkpoint")
    one = {"checkpoint": "data/one.safetensors", "name": "w"}
    only = 'only a folder has a place for one: convert it into a folder with its identity (identity="compute")'
    answer = (404, f"data/one.safetensors records no identity; {only}", "checkpoint")
    assert refused("proof", **one) == answer
    asked = {"checkpoint": "data/known", "name": "w"}
    assert refused("proof", **asked, slice="0:5,:") == (
        422,
        "the slice [0:5, 0:1100] of 'w' cuts tiles of its identity, so that it has no proof; the smallest slice that holds it and has "
        "one is [0:93, 0:1100]",
        "slice",
    )
    assert refused("proof", **asked, slice="3:3,:")[:2] == (
        422,
        "the slice [3:3, 0:1100] of 'w' has no elements, so that there is nothing to prove; choose a slice with elements",
    )
    status, detail, field = refused("proof", checkpoint="data/known", name="v")
    assert (status, field) == (404, "name")
    assert detail == "data/known has no tensor 'v'; it has 2 (b, w)"
    status, detail, _ = refused("proof", checkpoint="data/damaged", name="w")
    assert status == 422
    assert detail.startswith(
        "data/damaged/identity.tree is damaged: it has 200 bytes, but the tensors of identity.json have 201 or more; "
    )
    status, detail, field = refused("proof", checkpoint="data/known")
    assert (status, field) == (422, "name")
    assert refused("identity", checkpoint="data/nothing")[0] == 404
    status, detail, _ = refused("identity", checkpoint="data/linked")
    assert status == 422
    assert detail == (
        "data/linked/identity.json is a symbolic link to a place outside of data/linked; links that lead out of a checkpoint are not "
        "followed, so replace it by the file that it points to"
    )
    assert refused("identity", checkpoint="../etc")[0] in (403, 404, 422)
