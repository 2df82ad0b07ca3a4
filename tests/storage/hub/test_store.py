"""A repository of the hub as a place with files: its commit, its listing, its ranges, and the cache of huggingface_hub."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from reshard.errors import ForbiddenError, MissingError, StorageError
from reshard.storage.base import Entry, FileStatus
from reshard.storage.buckets.counts import so_far
from reshard.storage.buckets.file import RANGE_BYTES
from reshard.storage.location import locate
from tests.emulators.hub import Fault, Hub, blob_sha1, sha256
from tests.storage.hub.contents import FILES, LARGE


def test_names_sizes_and_versions(hub: Hub, commit: str) -> None:
    root = locate("hf://org/model")
    assert str(root) == f"hf://org/model@{commit}"
    assert list(root.files()) == sorted(FILES)
    assert root.entries() == [Entry("config.json", False), Entry("folder", True)]
    assert (root / "folder").entries() == [Entry("a b", True), Entry("model.safetensors", False)]
    large, small = (root / "folder/model.safetensors").status(), (root / "config.json").status()
    assert large == FileStatus("file", len(LARGE), sha256(LARGE))
    assert small == FileStatus("file", 8, blob_sha1(b'{"a": 1}'))
    assert (root / "folder").status() == FileStatus("folder")
    assert (root / "folde").status() is None
    assert [one.path.partition("?")[0] for one in hub.asked("hub")] == [
        "/api/models/org/model/revision/main", f"/api/models/org/model/tree/{commit}",
    ]  # fmt: skip


def test_what_is_not_there(commit: str) -> None:
    root = locate("hf://org/model")
    for call in (root / "none").open, (root / "folder").open, (root / "none").entries:
        with pytest.raises(
            MissingError, match=f"hf://org/model@{commit}/(none|folder): nothing is"
        ):
            call()
    with pytest.raises(MissingError, match="nothing is there"):
        (root / "config.json").open("another version")


def test_a_listing_in_pages_is_whole(hub: Hub) -> None:
    files = {f"{folder}/{name}": b"x" for folder in "abc" for name in range(4)}
    hub.repo("org/model").commit(files)
    hub.page_entries = 2
    assert list(locate("hf://org/model").files()) == sorted(files)
    pages = [one.path for one in hub.asked("hub", "/tree/")]
    assert len(pages) == 8
    assert "cursor=14" in pages[-1]


@pytest.mark.usefixtures("commit")
def test_the_link_to_the_next_page_leads_to_no_other_server(hub: Hub) -> None:
    """A mirror passes on links to the hub behind it; the token is for the mirror."""
    link = {"Link": '<https://elsewhere.invalid/api?recursive=true&cursor=9>; rel="next"'}
    hub.faults.append(Fault("/tree/", headers=link))
    assert list(locate("hf://org/model").files()) == sorted(FILES)
    assert "cursor=9" in hub.asked("hub", "/tree/")[-1].path


@pytest.mark.usefixtures("commit")
def test_ranges(hub: Hub) -> None:
    for path, data in FILES.items():
        file = (locate("hf://org/model") / path).open()
        for offset, nbytes in ((0, 4), (3, 1), (len(data) - 2, 10), (len(data), 4), (2, 0), (0, len(data))):  # fmt: skip
            assert file.read(offset, nbytes) == data[offset : offset + nbytes]
        out = bytearray(6)
        assert file.fill(len(data) - 3, memoryview(out)) == 3
        assert out == data[-3:] + bytes(3)
    assert all(one.range for one in hub.asked("", ".safetensors"))
    assert {one.sent_bytes for one in hub.asked("cdn")} == {4, 1, 2, len(LARGE), 3}


def test_a_large_read_is_made_in_ranges_at_once(hub: Hub) -> None:
    data = os.urandom(2 * RANGE_BYTES + 5)
    hub.repo("org/model").commit({"model.safetensors": data})
    before = so_far()
    assert (locate("hf://org/model") / "model.safetensors").open().read(0, len(data)) == data
    made = so_far() - before
    assert (made.head, made.list, made.get, made.received_bytes) == (1, 1, 3, len(data))
    assert len({one.range for one in hub.asked("cdn")}) == 3


@pytest.mark.usefixtures("commit")
def test_another_server_gets_no_token_and_is_asked_at_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.tokens["hf_secret"] = frozenset()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    file = (locate("hf://org/model") / "folder/model.safetensors").open()
    assert [file.read(at, 3) for at in (0, 5, 9)] == [LARGE[at : at + 3] for at in (0, 5, 9)]
    asked = hub.asked("hub")
    assert len(asked) == 3  # the second read goes where the first was sent
    assert {one.headers.get("authorization") for one in asked} == {"Bearer hf_secret"}
    assert all(one.headers["user-agent"].startswith("reshard/") for one in hub.log)
    assert len(hub.asked("cdn")) == 3
    assert not [one for one in hub.asked("cdn") if "authorization" in one.headers]


@pytest.mark.usefixtures("commit")
def test_a_url_that_expired_is_asked_for_again(hub: Hub) -> None:
    file = (locate("hf://org/model") / "folder/model.safetensors").open()
    assert file.read(0, 4) == LARGE[:4]
    hub.signature += 1
    assert file.read(8, 4) == LARGE[8:12]
    assert [one.status for one in hub.asked("cdn")] == [206, 403, 206]


def test_the_commit_stays_while_the_branch_moves(hub: Hub, commit: str) -> None:
    root = locate("hf://org/model")
    later = hub.repo("org/model").commit({"config.json": b"new", "more": b"x"})
    assert (root / "config.json").open().read(0, 99) == b'{"a": 1}'
    assert str(locate(f"{root}/config.json")) == f"hf://org/model@{commit}/config.json"
    assert list(root.state()) == list(locate(str(root)).state())
    now = locate("hf://org/model")
    assert str(now) == f"hf://org/model@{later}"
    assert list(now.state()) != list(root.state())
    assert list(locate(f"hf://org/model@{commit}").state()) == list(root.state())
    assert hub.asked("hub", "/revision/") == hub.asked("hub", "/revision/main?")


def test_revisions_and_kinds(hub: Hub) -> None:
    repo = hub.repo("org/data", "datasets")
    first = repo.commit({"f": b"1"})
    repo.commit({"f": b"2"}, "refs/pr/3")
    repo.commit({"f": b"3"}, "step/7")
    for text, data in {"": b"1", f"@{first}": b"1", "@refs/pr/3": b"2", "@step%2F7": b"3"}.items():
        assert locate(f"hf://datasets/org/data{text}/f").open().read(0, 9) == data
    assert {one.path.partition("/resolve/")[0] for one in hub.asked("hub", "/resolve/")} == {"/datasets/org/data"}  # fmt: skip


@pytest.mark.usefixtures("hub")
def test_a_location_is_found_again_in_another_process(commit: str) -> None:
    again = pickle.loads(pickle.dumps(locate("hf://org/model/config.json")))
    assert str(again) == f"hf://org/model@{commit}/config.json"
    assert again.open().read(0, 99) == b'{"a": 1}'


@pytest.mark.usefixtures("commit")
def test_a_repository_is_not_written_to() -> None:
    file = locate("hf://org/model/config.json")
    for call in (lambda: file.write(b"x"), file.remove):
        with pytest.raises(
            StorageError, match=r"config\.json cannot be changed by itself: .*; work on a copy"
        ):
            call()


class TestCache:
    """Files that huggingface_hub has downloaded."""

    @pytest.mark.usefixtures("commit")
    def test_a_file_in_the_cache_is_read_from_the_disk(self, hub: Hub) -> None:
        snapshot_download("org/model", allow_patterns=["*.safetensors"])
        hub.log.clear()
        root = locate("hf://org/model")
        assert (root / "folder/model.safetensors").open().read(7, 9) == LARGE[7:16]
        assert not hub.asked("", "safetensors")
        assert (root / "config.json").open().read(0, 3) == b'{"a'
        assert len(hub.asked("hub", "/resolve/")) == 1

    @pytest.mark.usefixtures("commit")
    def test_a_file_of_another_size_is_not_read(self) -> None:
        folder = snapshot_download("org/model")
        blob = Path(folder, "config.json").resolve()
        blob.write_bytes(b"{")
        assert locate("hf://org/model/config.json").open().read(0, 99) == b'{"a": 1}'

    def test_without_requests_all_comes_from_the_cache(
        self, hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot_download("org/model")
        hub.log.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        for at in ("", "@main", f"@{commit}"):
            root = locate(f"hf://org/model{at}").view()
            assert sorted(root.files()) == sorted(FILES)
            assert (root / "folder/model.safetensors").open().read(7, 9) == LARGE[7:16]
        assert not hub.log

    def test_without_requests_what_is_missing_is_said(
        self, commit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot_download("org/model", allow_patterns=["*.json"])
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(MissingError) as caught:
            locate("hf://org/model@v2")
        folder = f"{constants.HF_HUB_CACHE}/models--org--model/snapshots/v2"
        assert str(caught.value) == (
            f"cannot read hf://org/model@v2: HF_HUB_OFFLINE forbids requests, and {folder} is not there; unset the variable, or download "
            "the repository first (hf download org/model --revision v2)"
        )
        with pytest.raises(StorageError, match=f"{commit}/folder/model.safetensors': No such file"):
            locate("hf://org/model/folder/model.safetensors").open()


class TestRefusals:
    """Repositories that are not there, or not for everybody."""

    def test_a_repository_that_is_missing_or_private(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.repo("org/secret", is_private=True).commit(FILES)
        for name in ("org/none", "org/secret"):
            with pytest.raises(MissingError) as caught:
                locate(f"hf://{name}")
            assert str(caught.value) == (
                f"cannot read hf://{name} ({hub.url}/{name}): there is no such repository, or it is private; check the name; for a private one "
                "set HF_TOKEN to a token of an account that may read it, or log in (hf auth login) (the store says: RepoNotFound: "
                "Repository not found; no token was sent)"
            )
            assert caught.value.fault == "refused"
        hub.tokens |= {"hf_other": frozenset(), "hf_right": frozenset({"org/secret"})}
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        with pytest.raises(MissingError, match=r"or it is private; .*; a token was sent"):
            locate("hf://org/secret")
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        assert locate("hf://org/secret/config.json").open().read(0, 2) == b'{"'

    def test_a_gated_repository_names_the_page_with_its_terms(self, hub: Hub) -> None:
        commit = hub.repo("org/gated", is_gated=True).commit(FILES)
        with pytest.raises(ForbiddenError) as caught:
            locate("hf://org/gated/config.json").open().read(0, 1)
        assert str(caught.value) == (
            f"cannot read hf://org/gated@{commit}/config.json ({hub.url}/org/gated): its owner grants access to this repository; accept its "
            "terms on that page, and set HF_TOKEN to a token of an account that may read it, or log in (hf auth login) (the store says: "
            "GatedRepo: Access to model org/gated is restricted.; no token was sent)"
        )
        assert caught.value.fault == "forbidden"
        hub.tokens["hf_right"] = frozenset({"org/gated"})
        token = Path(constants.HF_TOKEN_PATH)  # as a login writes it
        token.parent.mkdir(parents=True)
        token.write_text("hf_right\n")
        assert locate("hf://org/gated/config.json").open().read(0, 1) == b"{"

    @pytest.mark.usefixtures("commit")
    def test_a_token_that_the_hub_does_not_know(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_revoked")
        with pytest.raises(StorageError, match="does not accept the credentials") as caught:
            locate("hf://org/model")
        assert "Invalid credentials in Authorization header; a token was sent" in str(caught.value)
        assert "hf_revoked" not in str(caught.value)

    @pytest.mark.usefixtures("commit")
    def test_a_revision_that_is_not_there(self, hub: Hub) -> None:
        for text in ("hf://org/model@v3/folder", f"hf://org/model@{'0' * 40}"):
            with pytest.raises(MissingError) as caught:
                locate(text).exists()
            assert f"cannot read {text} ({hub.url}/org/model): the repository has no such revision; name one of its branches" in str(caught.value)  # fmt: skip

    @pytest.mark.usefixtures("commit")
    def test_a_file_that_the_hub_has_no_more(self, hub: Hub) -> None:
        file = locate("hf://org/model/config.json").open()
        hub.faults.append(Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"}))
        with pytest.raises(MissingError, match="the commit has no such file"):
            file.read(0, 1)

    @pytest.mark.usefixtures("commit")
    def test_a_token_without_the_right(self, hub: Hub) -> None:
        hub.faults.append(Fault("/revision/", status=403))
        with pytest.raises(ForbiddenError, match="the token gives no permission; set HF_TOKEN"):
            locate("hf://org/model")
