"""A hub that is busy or away, that answers with other bytes than were asked for, or with anything at all: one error, never mixed bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from reshard.errors import SourceChangedError, StorageError
from reshard.storage.base import OpenFile
from reshard.storage.hub import client, store
from reshard.storage.location import locate
from tests.emulators.hub import Body, Fault, Hub
from tests.storage.hub.contents import LARGE


@pytest.fixture
def file(commit: str) -> OpenFile:
    """The large file; nothing is requested yet."""
    return locate(f"hf://org/model@{commit}/folder/model.safetensors").open()


def read_all(file: OpenFile) -> bytes:
    return file.read(0, len(LARGE))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("part", ["/resolve/", "signature=", "/revision/", "/tree/"])
@pytest.mark.usefixtures("commit")
def test_a_request_that_fails_is_made_again(part: str, status: int, hub: Hub) -> None:
    hub.faults.append(Fault(part, status=status, times=2))
    root = locate("hf://org/model")
    assert read_all((root / "folder/model.safetensors").open()) == LARGE
    assert [one.status for one in hub.asked("", part)][:3] in ([status] * 2 + [200], [status] * 2 + [302], [status] * 2 + [206])  # fmt: skip


@pytest.mark.parametrize(("status", "reason"), [(503, "the store failed"), (429, "the store asks for fewer requests")])  # fmt: skip
@pytest.mark.usefixtures("impatient")
def test_a_hub_that_stays_away_is_one_error(
    status: int, reason: str, hub: Hub, file: OpenFile, commit: str
) -> None:
    hub.faults.append(Fault("/resolve/", status=status, times=None))
    with pytest.raises(StorageError) as caught:
        file.read(0, 1)
    place = f"hf://org/model@{commit}/folder/model.safetensors ({hub.url}/org/model)"
    assert str(caught.value).startswith(
        f"cannot read {place}: {reason}, and still did after all retries; "
    )
    assert caught.value.fault == "unavailable"
    assert f"(the store says: status {status}: no token was sent)" in str(caught.value)
    assert 2 <= len(hub.asked("hub", "/resolve/")) <= 6


@pytest.mark.usefixtures("impatient")
def test_a_server_of_large_files_that_stays_away_is_one_error(hub: Hub, file: OpenFile) -> None:
    hub.faults.append(Fault("signature=", status=403, times=None))
    with pytest.raises(
        StorageError,
        match=r"model\.safetensors \(http://.*: the store failed.*127\.0\.0\.1: status 403",
    ):
        file.read(0, 1)
    assert len(hub.asked("cdn")) > 1


@pytest.mark.usefixtures("impatient")
def test_no_server(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.close()
    with pytest.raises(StorageError) as caught:
        locate("hf://org/model")
    assert "no connection to the server; check the endpoint and the network" in str(caught.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://no-such-host.invalid")
    with pytest.raises(StorageError, match="the name of the server is not known"):
        locate("hf://org/model")
    monkeypatch.setattr(constants, "ENDPOINT", "huggingface.co")
    with pytest.raises(StorageError, match="the endpoint in HF_ENDPOINT is no URL of a server"):
        locate("hf://org/model")


def test_a_hub_that_says_nothing_for_a_while(
    hub: Hub, file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.2)
    hub.faults.append(Fault("/resolve/", sleep_s=0.5))
    assert read_all(file) == LARGE


@pytest.mark.usefixtures("impatient")
def test_a_hub_that_says_nothing(hub: Hub, file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.1)
    hub.faults.append(Fault("signature=", sleep_s=0.5, times=None))
    with pytest.raises(StorageError, match="no full answer came in time") as caught:
        read_all(file)
    assert caught.value.fault == "slow"


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_always_breaks_off(hub: Hub, file: OpenFile) -> None:
    hub.faults.append(Fault("signature=", body="broken", times=None))
    with pytest.raises(
        StorageError, match="the connection broke off, also when it was asked again"
    ):
        file.read(0, 1)


def test_a_body_that_breaks_off_is_read_on_from_there(hub: Hub, file: OpenFile) -> None:
    hub.faults.append(Fault("signature=", body="broken"))
    assert read_all(file) == LARGE
    last, half = len(LARGE) - 1, len(LARGE) // 2
    assert [one.range for one in hub.asked("cdn")] == [f"bytes=0-{last}", f"bytes={half}-{last}"]


@pytest.mark.parametrize("body", ["short", "long", "whole", "encoded"])
@pytest.mark.parametrize("path", ["folder/model.safetensors", "config.json"])
def test_other_bytes_than_were_asked_for(body: Body, path: str, hub: Hub, commit: str) -> None:
    hub.faults.append(Fault("signature=" if "model" in path else "/resolve/", body=body))
    opened = locate(f"hf://org/model@{commit}/{path}").open()
    with pytest.raises(StorageError) as caught:
        opened.read(1, 4)
    said = str(caught.value)
    assert said.startswith(f"cannot read hf://org/model@{commit}/{path}: 127.0.0.1 sent '20")
    assert "with 4 is expected; check the network and any proxy, and run again" in said
    assert opened.read(1, 4) == (LARGE[1:5] if "model" in path else b'"a":')


@pytest.mark.parametrize(
    "headers",
    [{"X-Linked-Etag": f'"{"0" * 64}"'}, {"X-Repo-Commit": "1" * 40}],
)
def test_another_content_is_never_mixed(headers: dict[str, str], hub: Hub, file: OpenFile) -> None:
    hub.faults += [Fault("signature="), Fault("/resolve/", headers=headers, times=None)]
    with pytest.raises(SourceChangedError) as caught:
        read_all(file)
    assert str(caught.value).endswith(
        "model.safetensors changed while it was read: the hub names another commit or ETag for it now; run again once nobody writes to it"
    )


def test_a_small_file_with_another_etag(hub: Hub, commit: str) -> None:
    opened = locate(f"hf://org/model@{commit}/config.json").open()
    assert opened.read(0, 1) == b"{"
    hub.faults.append(Fault("/resolve/", headers={"ETag": f'W/"{"a" * 40}"'}))
    with pytest.raises(SourceChangedError, match="another commit or ETag"):
        opened.read(1, 1)


def test_a_hub_with_hashes_of_its_own_is_read(hub: Hub, commit: str) -> None:
    """An ETag may be any text; a mirror of the hub need not take that of git."""
    hub.faults.append(Fault("/resolve/", headers={"ETag": '"plan-7"'}, times=None))
    assert locate(f"hf://org/model@{commit}/config.json").open().read(0, 1) == b"{"


ODD = {
    "no JSON": b"<html>",
    "no commit": b'{"sha": "main"}',
    "no object": b"[1]",
    "a name with dots": b'[{"type": "file", "path": "../../etc/passwd", "size": 1, "oid": "a"}]',
    "no size": b'[{"type": "file", "path": "a", "oid": "a"}]',
    "a size that is none": b'[{"type": "file", "path": "a", "size": "many", "oid": "a"}]',
    "no list": b'{"error": "x"}',
    "no UTF-8": b'["\xff"]',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("part", ["revision", "tree"])
def test_answers_that_are_none(
    what: str, part: str, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.json.decode
    wanted = {"revision": f'"sha": "{commit}"', "tree": '"path": "config.json"'}[part]
    monkeypatch.setattr(
        store.json, "decode", lambda body: real(ODD[what] if wanted.encode() in body else body)
    )
    with pytest.raises(StorageError, match=r"cannot read hf://org/model.*: the request failed"):
        list(locate("hf://org/model").files())


def test_a_listing_without_an_end(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_PAGES", 3)
    hub.faults.append(Fault("/tree/", headers={"Link": '<?cursor=0>; rel="next"'}, times=None))
    with pytest.raises(
        StorageError, match=f"cannot list hf://org/model@{commit}: it has more than 3,000 files"
    ):
        list(locate("hf://org/model").files())
    assert len(hub.asked("hub", "/tree/")) == 3


@pytest.mark.usefixtures("commit")
def test_a_token_that_fits_into_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    with pytest.raises(
        StorageError, match=r"cannot read hf://org/model .*: the request failed"
    ) as caught:
        locate("hf://org/model")
    assert "cret" not in str(caught.value)


@pytest.mark.usefixtures("commit")
def test_a_token_file_that_cannot_be_read() -> None:
    Path(constants.HF_TOKEN_PATH).mkdir(parents=True)
    with pytest.raises(StorageError, match=r"the request failed.*Is a directory"):
        locate("hf://org/model")
