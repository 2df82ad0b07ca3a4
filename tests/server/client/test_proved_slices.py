"""The client checks each slice that it pulls against a root, and trusts nobody else."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from reshard_server.client import Client
from reshard_server.client.tensors import Tensors
from reshard_server.client.transport import Transport

import reshard
from tests.formats.safetensors.build import entry, file_of, packed
from tests.server.live import Live
from tests.server.tokens import TOKENS

W = np.random.default_rng(4).normal(size=(1500, 1100)).astype(np.float32)


@pytest.fixture(scope="module")
def known(served: Live) -> str:
    """The root of the checkpoint ``data/proved``."""
    path = served.log.parent / "data" / "proved"
    int4 = np.arange(-8, 8).astype(ml_dtypes.int4)
    int4.view(np.uint8)[:] |= 0xF0
    tree = {"w": W, "int4": int4, "scalar": np.float32(3), "bool": np.arange(9) % 2 == 0}
    reshard.save(path, tree)
    return reshard.identify(path, write=True).root


def read(client: Client, root: str, name: str = "w", part: str | None = None, **more: Any) -> Any:
    return client.tensors.read("data/proved", name, part, identity=root, **more)


@pytest.mark.parametrize(
    "part", [None, "0:750,:", ":,550:", "3:5,7:9", "1499:,:1", "100:200,540:560"]
)
def test_slices_are_pulled_and_checked(part: str | None, client: Client, known: str) -> None:
    found = read(client, known.upper(), part=part)
    rows, columns = (part or ":,:").split(",")
    index = tuple(
        slice(*(int(e) if e else None for e in ends.split(":"))) for ends in (rows, columns)
    )
    np.testing.assert_array_equal(found, W[index], strict=True)


def test_other_dtypes(client: Client, known: str) -> None:
    assert read(client, known, "scalar") == np.float32(3)
    assert read(client, known, "scalar").shape == ()
    np.testing.assert_array_equal(read(client, known, "int4", "3:7").astype(int), np.arange(-5, -1))
    np.testing.assert_array_equal(read(client, known, "bool"), np.arange(9) % 2 == 0)


def test_elements_of_several_values_are_bytes(client: Client, data: Path) -> None:
    (data / "packed").mkdir()
    stored = bytes(range(3 * 6))
    file_of(
        data / "packed", packed({"w": entry("F6_E3M2", [3, 8], 0, 18)}, stored), "model.safetensors"
    )
    root = reshard.identify(data / "packed", write=True).root
    found = client.tensors.read("data/packed", "w", "1:3,:", identity=root)
    assert (found.dtype, found.shape, found.tobytes()) == (np.uint8, (2, 6), stored[6:])


def test_a_step_and_one_identity(client: Client, data: Path, known: str) -> None:
    shutil.copytree(data / "proved", data / "steps" / "1", dirs_exist_ok=True)
    found = client.tensors.read("data/steps", "w", "0:1,:", identity=known, step=1)
    np.testing.assert_array_equal(found, W[:1])
    assert list(client.tensors.known) == [known]


def test_what_is_refused_before_anything_is_asked(client: Client, known: str) -> None:
    with pytest.raises(
        reshard.PlanError,
        match=r"^the identity is 'abc'; expected a root of 64 hex digits, as reshard identify shows it$",
    ):
        read(client, "abc")
    with pytest.raises(
        reshard.PlanError,
        match=r"^a slice that is cast has other bits than the identity; leave out dtype, and cast the array that you get$",
    ):
        read(client, known, dtype="bfloat16")
    with pytest.raises(
        reshard.TreeError, match=rf"^the identity {known} has no tensor 'v'; it has 4$"
    ):
        read(client, known, "v")
    with pytest.raises(
        reshard.LayoutError, match="has no elements, so that there is nothing to prove"
    ):
        read(client, known, part="3:3,:")


def test_another_root_and_no_identity(client: Client) -> None:
    with pytest.raises(
        reshard.VerificationError,
        match=r"^the identity of data/proved at this server has the root [0-9a-f]{64}, but expected is 0{64}; ask for the checkpoint that "
        r"has it, or find out who changed this one$",
    ):
        read(client, "0" * 64)
    with pytest.raises(reshard.ReshardError, match=r"^data/run records no identity"):
        client.tensors.read("data/run", "params/bias", identity="0" * 64)


def test_changed_weights_are_refused(client: Client, data: Path, known: str) -> None:
    """The weights were changed and their identity made anew: its root is another one."""
    path = data / "changed"
    other = W.copy()
    other.view(np.uint32)[800, 3] ^= 1
    reshard.save(path, {"w": other})
    reshard.identify(path, write=True)
    with pytest.raises(reshard.VerificationError, match=f"but expected is {known}"):
        client.tensors.read("data/changed", "w", identity=known)
    shutil.copy(data / "proved" / "identity.json", path)
    shutil.copy(data / "proved" / "identity.tree", path)
    with pytest.raises(reshard.CorruptError, match="does not fit its tensors"):
        client.tensors.read("data/changed", "w", identity=known)
    tree = {
        "int4": np.zeros(16, ml_dtypes.int4),
        "scalar": np.float32(3),
        "bool": np.arange(9) % 2 == 0,
    }
    shutil.rmtree(path)
    reshard.save(path, {"w": other, **tree})
    (path / "slices.json").unlink()  # its digests would contradict at once
    shutil.copy(data / "proved" / "identity.json", path)
    shutil.copy(data / "proved" / "identity.tree", path)
    right = client.tensors.read("data/changed", "w", "0:750,:", identity=known)
    np.testing.assert_array_equal(right, W[:750])
    for part in ("750:,:", ""):
        with pytest.raises(
            reshard.VerificationError,
            match=r"^the slice \[.*\] of 'w' is not that of the identity: with its proof it gives the top [0-9a-f]{64}, but expected is "
            r"[0-9a-f]{64}; it, or its proof, was changed: read it from another copy$",
        ):
            client.tensors.read("data/changed", "w", part, identity=known)
    with pytest.raises(
        reshard.CorruptError, match=r"has other elements in .* than its identity records"
    ):
        client.tensors.read("data/changed", "w", "800:801,3:4", identity=known)


class Between(httpx.BaseTransport):
    """Someone between client and server who changes answers."""

    def __init__(self, change: Callable[[httpx.Request, bytearray, httpx.Headers], None]) -> None:
        self.change = change
        self.real = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with httpx.Client(transport=self.real) as http:
            answer = http.send(request)
        body, headers = bytearray(answer.content), answer.headers
        self.change(request, body, headers)
        headers.pop("Content-Length", None)
        return httpx.Response(
            answer.status_code, headers=headers, stream=httpx.ByteStream(bytes(body))
        )


def between(
    served: Live, change: Callable[[httpx.Request, bytearray, httpx.Headers], None]
) -> Tensors:
    headers = {"Authorization": f"Bearer {TOKENS['ann'][0]}", "Accept-Encoding": "identity"}
    http = httpx.Client(base_url=served.url, headers=headers, transport=Between(change))
    return Tensors(Transport(http, sleep=lambda _: None))


def flip(body: bytearray) -> None:
    body[len(body) // 2] ^= 1


def is_slice(request: httpx.Request) -> bool:
    return request.url.path == "/v1/tensors"


def in_proof(change: Callable[[bytes], object]) -> Callable[..., None]:
    """Changes a proof, in the header or in an answer of its own."""

    def changed(request: httpx.Request, body: bytearray, headers: httpx.Headers) -> None:
        if "X-Reshard-Proof" in headers:
            headers["X-Reshard-Proof"] = (
                f":{change(headers['X-Reshard-Proof'].strip(':').encode())}:"
            )
        if request.url.path.endswith("/proof"):
            document = json.loads(body)
            document["proof"] = change(document["proof"].encode())
            body[:] = json.dumps(document).encode()

    return changed


def rotated(proof: bytes) -> str:
    data = base64.b64decode(proof)
    return base64.b64encode(data[32:] + data[:32]).decode()


NOT_IT = r"is not that of the identity: with its proof it gives the top"
CASES: dict[str, tuple[Callable[..., None], str]] = {
    "a bit": (lambda q, body, _: flip(body) if is_slice(q) else None, NOT_IT),
    "another proof": (in_proof(rotated), NOT_IT),
    "a short proof": (in_proof(lambda p: p[:44].decode()), r"has \d+ bytes; expected \d+; ask for the proof of this slice"),
    "a long proof": (in_proof(lambda p: p.decode() * 3), r"has .* bytes; expected \d+; ask for the proof of this slice|is not base64"),
    "no proof": (in_proof(lambda _: "?"), "is not base64"),
    "short": (lambda q, body, _: body.pop() and None if is_slice(q) else None, r"the server sent [\d,]+ bytes for the slice .*; expected [\d,]+, as"),
    "long": (lambda q, body, _: body.extend(b"x" * 9) if is_slice(q) else None, r"the server sent more than [\d,]+ bytes for the slice"),
    "root": (
        lambda q, body, _: body.__setitem__(slice(None), body.replace(b'"w"', b'"v"')) if q.url.path.endswith("identity") else None,
        r"the identity of data/proved at this server is damaged: its root is",
    ),
    "no identity": (
        lambda q, body, _: body.__setitem__(slice(None), b"[1]") if q.url.path.endswith("identity") else None,
        r"the identity of data/proved at this server is damaged",
    ),
    "not a proof": (
        lambda q, body, _: body.__setitem__(slice(None), b"[1]") if q.url.path.endswith("proof") else None,
        r"was not answered with a proof; check that client and server have the same version",
    ),
    "an endless proof": (
        lambda q, body, _: body.extend(b" " * 100_000) if q.url.path.endswith("proof") else None,
        r"the proof of the slice .* has more than [\d,]+ bytes; check that the URL is that of a reshard server",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", ["0:750,550:", "3:5,7:9"], ids=["by header", "by an answer"])
@pytest.mark.parametrize("what", CASES)
def test_changed_answers_are_refused(what: str, part: str, served: Live, known: str) -> None:
    change, said = CASES[what]
    if "proof" in what and what in ("not a proof", "an endless proof") and part.startswith("0:750"):
        found = between(served, change).read("data/proved", "w", part, identity=known)
        np.testing.assert_array_equal(found, W[:750, 550:])  # the header had the proof
        return
    with pytest.raises((reshard.VerificationError, reshard.CorruptError), match=said) as raised:
        between(served, change).read("data/proved", "w", part, identity=known)
    assert re.search(r"data/proved|'w'", str(raised.value))
