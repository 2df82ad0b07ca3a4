"""The identity of weights by HTTP: asked for, and in the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import numpy as np
import pytest
from reshard_server.client import Client

import reshard
from reshard.cli.app import run
from tests.server.asking import converted
from tests.server.live import Live, live
from tests.server.tokens import TOKENS
from tests.signing_keys import ED25519, P256, make_key


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has a checkpoint with an identity, and one without."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("known", "unknown"):
        reshard.save(folder / "data" / name, {"w": np.arange(40_000)})
    reshard.identify(folder / "data" / "known", write=True)
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


@pytest.mark.parametrize(
    ("how", "said"),
    [("check", "checked"), (None, "carried")],
)
def test_the_result_has_the_root(
    how: str | None, said: str, client: httpx.Client, server: Live
) -> None:
    target = f"data/{how or 'default'}"
    ended = converted(client, source="data/known", target=target, identity=how)
    root = json.loads(file_of(server, "data/known").read_text())["root"]
    assert ended["result"][0]["identity"] == {"root": root, "how": said}
    assert file_of(server, target).read_bytes() == file_of(server, "data/known").read_bytes()


def test_the_client_and_the_command_show_it(
    server: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = root_of(server, "data/known")
    with Client(server.url, TOKENS["bob"][0]) as asked:
        (report,) = asked.convert("data/known", "data/by_client", identity="check").wait()
        assert asked.checkpoints.identify("data/unknown").root == root
        assert asked.checkpoints.verify("data/unknown", identity=root).identity.root == root
    assert report.identity == reshard.IdentityReport(root, "checked")
    monkeypatch.setenv("RESHARD_TOKEN", TOKENS["bob"][0])
    command = ["convert", "data/known", "data/by_command", "--server", server.url]
    assert run([*command, "--identity", "compute"]) == 0
    assert f"identity computed from what was written: {root}\n" in capsys.readouterr().out
    assert run([*command, "--identity", "compute", "--json", "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"] == {"root": root, "how": "computed"}


def test_a_source_without_one_is_the_problem_of_the_conversion(client: httpx.Client) -> None:
    ended = converted(client, source="data/unknown", target="data/none", identity="check")
    assert ended["state"] == "failed"
    assert "data/unknown records no identity that could be checked" in ended["error"]["detail"]
    refused = client.post(
        "/v1/conversions", json={"source": "data/known", "target": "data/x", "identity": "what"}
    )
    assert refused.status_code == 422
    assert "expected 'carry', 'compute', 'check' or 'none'" in refused.json()["detail"]


def root_of(server: Live, checkpoint: str) -> str:
    root: str = json.loads(file_of(server, checkpoint).read_text())["root"]
    return root


def test_the_root_is_computed_on_demand(client: httpx.Client, server: Live) -> None:
    answer = client.post("/v1/checkpoints:identify", json={"checkpoint": "data/unknown"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["command"], found["uri"], found["written"]) == ("identify", "data/unknown", [])
    assert found["root"] == root_of(server, "data/known")
    assert [tensor["name"] for tensor in found["tensors"]] == ["w"]
    assert not file_of(server, "data/unknown").exists()
    little = {"checkpoint": "data/unknown", "max_memory": "1MiB"}
    refused = client.post("/v1/checkpoints:identify", json=little)
    assert refused.status_code == 422
    assert refused.json()["smallest_bytes"] > 1 << 20


def test_verify_takes_a_root(client: httpx.Client, server: Live) -> None:
    root = root_of(server, "data/known")
    body = {"checkpoint": "data/known", "identity": root}
    found = client.post("/v1/checkpoints:verify", json=body).json()
    assert (found["equal"], found["identity"]["expected"]) == (True, root)
    other = {**body, "identity": "0" * 64}
    found = client.post("/v1/checkpoints:verify", json=other).json()
    assert (found["equal"], found["differences"]) == (False, 1)
    assert found["identity"] == {"root": root, "expected": "0" * 64, "signer": None}
    for path in ("data/known", str(file_of(server, "data/known"))):
        refused = client.post("/v1/checkpoints:verify", json={**body, "identity": path})
        assert refused.status_code == 422
        assert "expected text that matches" in refused.json()["detail"]
    refused = client.post("/v1/checkpoints:verify", json={**body, "other": "data/unknown"})
    assert "an identity and a key are for one checkpoint" in refused.json()["detail"]


@pytest.fixture(scope="module")
def signed(server: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private key that signed ``data/signed``; its public part lies beside it."""
    folder = tmp_path_factory.mktemp("keys")
    data = file_of(server, "data/signed").parent
    reshard.save(data, {"w": np.arange(9)})
    key = make_key(folder, "release", *ED25519)
    make_key(folder, "other", *P256)
    reshard.sign(data, key=key, name="llama", version=1000)
    return key


def test_verify_takes_a_public_key(client: httpx.Client, signed: Path) -> None:
    body = {"checkpoint": "data/signed", "key": signed.with_name("release.pub.pem").read_text()}
    found = client.post("/v1/checkpoints:verify", json=body).json()
    assert found["equal"] is True
    assert len(found["identity"]["signer"]) == 64
    assert found["identity"]["version"] == "1000"
    other = {**body, "key": signed.with_name("other.pub.pem").read_text()}
    refused = client.post("/v1/checkpoints:verify", json=other)
    assert (refused.status_code, refused.json()["title"]) == (422, "The bits differ")
    assert "is not signed with this key" in refused.json()["detail"]
    bad = client.post(
        "/v1/checkpoints:verify", json={**body, "key": "-----BEGIN PUBLIC KEY-----\nx"}
    )
    assert bad.status_code == 422
    assert "the key does not hold a public key in PEM" in bad.json()["detail"]
    path = {**body, "key": str(signed.with_name("release.pub.pem"))}
    refused = client.post("/v1/checkpoints:verify", json=path)
    assert refused.status_code == 422
    assert "expected a public key as the text of a PEM file" in refused.json()["detail"]


def test_the_command_asks_a_server(
    server: Live,
    signed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", TOKENS["bob"][0])

    def verified(*words: str, url: str = server.url) -> tuple[int, str]:
        code = run(["verify", "data/signed", *words, "--server", url])
        shown = capsys.readouterr()
        return code, " ".join((shown.out + shown.err).split())

    root = root_of(server, "data/signed")
    code, said = verified("--identity", root)
    assert (code, f"root: {root}" in said, "verified: 1 of 1 tensor" in said) == (0, True, True)
    code, said = verified("--identity", "0" * 64)
    assert (code, f"expected: {'0' * 64}" in said) == (3, True)
    code, said = verified("--key", str(signed.with_name("release.pub.pem")))
    assert (code, "signer: " in said, "signed: llama, 1000, " in said) == (0, True, True)
    newer = ("--name", "llama", "--min-version", "1001")
    assert verified("--key", str(signed.with_name("release.pub.pem")), *newer)[0] == 3
    code, said = verified("--key", str(signed.with_name("other.pub.pem")))
    assert (code, "is not signed with this key" in said) == (3, True)
    nobody = "http://127.0.0.1:9"  # nothing is sent
    code, said = verified("--key", str(signed), url=nobody)
    assert (code, "holds a private key; checking needs the public one" in said) == (1, True)
    code, said = verified("--identity", str(signed.parent), url=nobody)
    assert (code, "names files of this host, and --server lets a server" in said) == (2, True)
    code, said = verified("--receipt", "r.json", url=nobody)
    assert (code, "--receipt is of this host" in said) == (2, True)


def test_a_private_key_is_refused_and_kept_nowhere(
    client: httpx.Client, server: Live, signed: Path
) -> None:
    secret = signed.read_text()
    body = {"checkpoint": "data/signed", "key": secret}
    refused = client.post("/v1/checkpoints:verify", json=body)
    assert refused.status_code == 422
    assert "a private key was sent, and nothing of it is kept" in refused.json()["detail"]
    inner = secret.splitlines()[1]
    assert inner not in refused.text
    for file in server.log.parent.rglob("*"):
        if file.is_file():
            assert inner.encode() not in file.read_bytes(), file


@pytest.fixture
def visitor(server: Live) -> Iterator[httpx.Client]:
    """A browser that is signed in."""
    with httpx.Client(base_url=server.url, timeout=30) as browser:
        form = {"token": TOKENS["bob"][0]}
        answer = browser.post("/sign-in", data=form, headers={"Origin": server.url})
        assert answer.status_code == 303
        session = SimpleCookie(answer.headers["set-cookie"])["reshard_session"].value
        browser.cookies.clear()
        browser.headers["Cookie"] = f"reshard_session={session}"
        yield browser


def shown(visitor: httpx.Client, checkpoint: str) -> str:
    return visitor.get("/checkpoint", params={"path": checkpoint}).text


@pytest.mark.usefixtures("signed")
def test_the_page_shows_what_is_recorded(visitor: httpx.Client, server: Live) -> None:
    page = shown(visitor, "data/signed")
    assert root_of(server, "data/signed") in page
    assert "with a signature of the key" in page
    assert "not verified" in page
    page = shown(visitor, "data/known")
    assert root_of(server, "data/known") in page
    assert "with a signature" not in page
    page = shown(visitor, "data/unknown")
    assert "Tensors" in page
    assert "Recorded identity" not in page


def test_a_conversion_shows_the_signature_that_it_copied(
    client: httpx.Client, visitor: httpx.Client, server: Live, signed: Path
) -> None:
    ended = converted(client, source="data/signed", target="data/copied")
    (signer,) = ended["result"][0]["identity"]["signers"]
    page = visitor.get(f"/conversions/{ended['id']}").text
    assert f"carried, with a signature of the key <code>{signer}</code>; not verified" in page
    key = signed.with_name("release.pub.pem").read_text()
    found = client.post(
        "/v1/checkpoints:verify", json={"checkpoint": "data/copied", "key": key}
    ).json()
    assert (found["equal"], found["identity"]["signer"]) == (True, signer)
    folder = file_of(server, "data/copied").parent
    (folder / "identity.dsse.json").write_text("{")
    ended = converted(client, source="data/copied", target="data/unsigned")
    (warning,) = ended["result"][0]["warnings"]
    assert warning.startswith("no signature is carried: data/copied/identity.dsse.json is damaged")
    assert "signers" not in ended["result"][0]["identity"]


def test_the_page_says_where_it_cannot_be_read(visitor: httpx.Client, server: Live) -> None:
    folder = file_of(server, "data/broken").parent
    reshard.save(folder, {"w": np.arange(9)})
    (folder / "identity.json").write_text("{")
    page = shown(visitor, "data/broken")
    assert "its files cannot be read: data/broken/identity.json is damaged: " in page
    assert str(folder) not in page
    root = reshard.identify(folder, write=True).root
    (folder / "identity.dsse.json").write_text("{")
    page = shown(visitor, "data/broken")
    assert f"<code>{root}</code>; not verified; its signature cannot be read: " in page
    assert "cannot be read: data/broken/identity.dsse.json is damaged: it is no DSSE" in page
    assert str(folder) not in page


def test_a_plan_says_what_it_costs(client: httpx.Client) -> None:
    body = {"source": "data/known", "target": "data/planned", "compression": "zstd"}
    plan = client.post("/v1/plans", json={**body, "identity": "compute"}).json()
    assert plan["identity"]["how"] == "compute"
    assert plan["identity"]["read_bytes"] == plan["identity"]["decoded_bytes"] == 320_000
    assert client.post("/v1/plans", json=body).json()["identity"]["how"] == "carry"
    none = client.post("/v1/plans", json={**body, "identity": "none"}).json()
    assert none.get("identity") is None


def file_of(server: Live, checkpoint: str) -> Path:
    return server.log.parent / checkpoint / "identity.json"
