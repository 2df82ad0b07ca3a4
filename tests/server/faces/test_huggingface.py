"""The Hugging Face face: every route, ranges against the bytes, the codes that clients know, hostile paths and headers."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reshard_server.auth.sessions import PLAIN_NAME
from reshard_server.errors.problems import FORBIDDEN, GONE, NO_VIEW, NOT_FOUND, ProblemError
from reshard_server.faces.one_view import OneView, clean_name
from safetensors.numpy import save_file

import reshard
from tests.server.faces.one_face import Face, face_of

MODEL, FILES = "/api/models/views/tiny", "/views/tiny/resolve/main"
WEIGHTS = "model-00002-of-00003.safetensors"
CODE, MESSAGE = "x-error-code", "x-error-message"


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("face") / "source"
    folder.mkdir()
    random = np.random.default_rng(1)
    tensors = {f"w{i}": random.standard_normal((100, 256), np.float32) for i in range(3)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.fixture(scope="module")
def view(source: Path) -> Iterator[reshard.CheckpointView]:
    options: dict[str, Any] = {"file_bytes": 60_000, "carry": True, "cast": {"float": "bfloat16"}}
    with reshard.open_view(source, **options) as found:
        yield found


@pytest.fixture(scope="module")
def face(view: reshard.CheckpointView) -> Iterator[Face]:
    with face_of(view) as found:
        yield found


@pytest.fixture(scope="module")
def whole(view: reshard.CheckpointView) -> bytes:
    return b"".join(view.files[WEIGHTS].read())


@pytest.mark.parametrize("which", ["", "/revision/main", "/revision/COMMIT"])
def test_a_model_has_a_commit_and_files(
    face: Face, view: reshard.CheckpointView, which: str
) -> None:
    answer = face.ask(MODEL + which.replace("COMMIT", view.revision))
    model = answer.json()
    assert answer.status_code == 200
    assert (model["id"], model["modelId"], model["author"]) == ("views/tiny", "views/tiny", "views")
    assert (model["private"], model["gated"], model["disabled"]) == (False, False, False)
    assert model["sha"] == view.revision
    assert datetime.fromisoformat(model["lastModified"]).tzinfo is not None
    assert {one["rfilename"]: one["size"] for one in model["siblings"]} == {
        path: file.nbytes for path, file in view.files.items()
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [("", 1), ("?author=views&search=TIN&limit=5", 1), ("?search=other", 0), ("?author=meta", 0)],
)
def test_models_are_listed(face: Face, query: str, found: int) -> None:
    names = [one["id"] for one in face.ask(f"/api/models{query}").json()]
    assert names == ["views/tiny"][:found]


def test_the_only_branch_is_main(face: Face, view: reshard.CheckpointView) -> None:
    refs = face.ask(f"{MODEL}/refs").json()
    assert refs["branches"] == [
        {"name": "main", "ref": "refs/heads/main", "targetCommit": view.revision}
    ]
    assert refs["tags"] == refs["converts"] == refs["pullRequests"] == []


def test_a_tree_has_sizes_and_ids(face: Face, view: reshard.CheckpointView) -> None:
    entries = {one["path"]: one for one in face.ask(f"{MODEL}/tree/main?recursive=true").json()}
    assert entries.keys() == view.files.keys()
    for path, entry in entries.items():
        file = view.files[path]
        assert (entry["type"], entry["size"]) == ("file", file.nbytes)
        data = b"".join(file.read())
        assert entry["oid"] == (file.tag if ".safetensors" in path[-12:] else git_id(data))


def test_folders_of_a_tree(source: Path) -> None:
    with reshard.open_view(source, to="orbax") as view, face_of(view) as face:

        def tree(more: str) -> dict[str, str]:
            return {one["path"]: one["type"] for one in face.ask(f"{MODEL}/tree/{more}").json()}

        top = tree("main")
        assert top == tree("main?recursive=False") == tree("main/")
        assert top["w0"] == "directory"
        assert top["_METADATA"] == "file"
        assert not any("/" in path for path in top)
        inside = [path.split("/")[1] for path in view.files if path.startswith("w0/")]
        assert set(tree("main/w0?recursive=false")) == {f"w0/{name}" for name in inside}
        everything = tree("main?recursive=true")
        assert {path for path, kind in everything.items() if kind == "file"} == set(view.files)
        assert set(tree("main/w0?recursive=true")) == {p for p in everything if p[:3] == "w0/"}
        asked = {"paths": ["w0", "w0/", "_METADATA", "nothing"], "expand": "False"}
        found = face.ask(f"{MODEL}/paths-info/main", "POST", data=asked).json()
        assert [one["path"] for one in found] == ["w0", "_METADATA"]
        missing = face.ask(f"{MODEL}/tree/main/w0/none")
        assert (missing.status_code, missing.headers[CODE]) == (404, "EntryNotFound")


def test_paths_are_asked_for_by_a_form(face: Face) -> None:
    answer = face.ask(f"{MODEL}/paths-info/main", "POST", json={"paths": ["config.json"]})
    assert answer.status_code == 400
    assert answer.headers[MESSAGE] == (
        "expected a form with the member paths; send it once for each path"
    )


@pytest.mark.parametrize("revision", ["main", "COMMIT"])
@pytest.mark.parametrize("path", ["config.json", WEIGHTS])
def test_a_file_and_its_headers(
    face: Face, view: reshard.CheckpointView, path: str, revision: str
) -> None:
    file = view.files[path]
    url = f"/views/tiny/resolve/{revision.replace('COMMIT', view.revision)}/{path}"
    got, head = face.ask(url), face.ask(url, "HEAD", headers={"Range": "bytes=0-1"})
    assert got.content == b"".join(file.read())
    assert head.content == b""
    for answer in (got, head):
        assert answer.status_code == 200
        assert answer.headers["etag"] == f'"{git_id(got.content) if file.is_known else file.tag}"'
        assert answer.headers["x-repo-commit"] == view.revision
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.headers["content-length"] == str(file.nbytes)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert parsedate_to_datetime(answer.headers["last-modified"]).tzinfo is not None


@given(st.data())
def test_any_range_has_its_bytes(face: Face, whole: bytes, data: st.DataObject) -> None:
    number = st.none() | st.integers(0, len(whole) + 3)
    first, last = data.draw(number), data.draw(number)
    asked = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    answer = face.ask(f"{FILES}/{WEIGHTS}", headers={"Range": asked})
    if first is None:
        start, stop = (0, None) if last is None else (max(0, len(whole) - last), len(whole))
    else:
        start, stop = first, len(whole) if last is None else min(last + 1, len(whole))
    if stop is None or (first is not None and last is not None and last < first):  # malformed
        assert (answer.status_code, answer.content) == (200, whole)
    elif start >= stop:
        assert answer.status_code == 416
        assert answer.headers["content-range"] == f"bytes */{len(whole)}"
        assert answer.headers[MESSAGE].startswith(f"the range '{asked}' has none of the ")
    else:
        assert answer.status_code == 206
        assert answer.content == whole[start:stop]
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,3-4", "bytes=-", "bytes=x", "lines=0-1", "bytes=0-" + "9" * 400]
)
def test_other_ranges_get_the_whole(face: Face, whole: bytes, asked: str) -> None:
    answer = face.ask(f"{FILES}/{WEIGHTS}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, whole)


def test_conditional_requests(face: Face, view: reshard.CheckpointView, whole: bytes) -> None:
    tag, url = f'"{view.files[WEIGHTS].tag}"', f"{FILES}/{WEIGHTS}"
    for known in (tag, f'"other", W/{tag}', "*"):
        for method in ("GET", "HEAD"):
            answer = face.ask(url, method, headers={"If-None-Match": known})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == tag
    assert face.ask(url, headers={"If-None-Match": '"other"'}).content == whole
    part = {"Range": "bytes=5-8"}
    assert face.ask(url, headers={**part, "If-Range": tag}).content == whole[5:9]
    for other in ('"other"', f"W/{tag}", "Mon, 30 Nov 2026 04:04:41 GMT"):
        assert face.ask(url, headers={**part, "If-Range": other}).content == whole
    assert face.ask(url, headers={**part, "If-Match": tag}).content == whole[5:9]
    assert face.ask(url, headers={**part, "If-Match": '"other"'}).status_code == 412


NO_REVISION = f"there is no views/tiny at '{'0' * 40}'; here is views/tiny at main, which is "
NO_MODEL = "is nothing that this server has; it has models only, whose names begin with views/"


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/api/models/views/other", "RepoNotFound", "there is no views/other at 'main'; here is views/tiny"),
        ("/views/other/resolve/main/config.json", "RepoNotFound", "there is no views/other at 'main'; here is views/tiny"),
        (f"{MODEL}/revision/{'0' * 40}", "RevisionNotFound", NO_REVISION),
        (f"{MODEL}/tree/{'0' * 40}", "RevisionNotFound", NO_REVISION),
        (f"{MODEL}/revision/refs%2Fpr%2F1", "RevisionNotFound", "there is no views/tiny at 'refs/pr/1'"),
        (f"/views/tiny/resolve/{'0' * 40}/config.json", "RevisionNotFound", NO_REVISION),
        (f"{FILES}/nothing.json", "EntryNotFound", "the view 'tiny' has no file 'nothing.json'; its tree lists those that it has"),
        ("/api/models/meta/tiny", "RepoNotFound", f"'/hf/api/models/meta/tiny' {NO_MODEL}"),
        ("/meta/tiny/resolve/main/config.json", "RepoNotFound", NO_MODEL),
        ("/gpt2/resolve/main/config.json", "RepoNotFound", NO_MODEL),
        ("/api/datasets/views/tiny", "RepoNotFound", NO_MODEL),
        ("/api/whoami-v2", "RepoNotFound", NO_MODEL),
    ],
)  # fmt: skip
def test_what_is_not_there_has_the_code_that_clients_know(
    face: Face, view: reshard.CheckpointView, path: str, code: str, said: str
) -> None:
    for method in ("GET", "HEAD"):
        answer = face.ask(path, method)
        assert answer.status_code == 404
        assert answer.headers[CODE] == code
        assert said in answer.headers[MESSAGE]
    problem = face.ask(path).json()
    assert problem["type"] == "urn:reshard:problem:not-found"
    assert problem["detail"] == answer.headers[MESSAGE]
    # A client remembers at the commit that a file is not there.
    commit = view.revision if code == "EntryNotFound" else None
    assert answer.headers.get("x-repo-commit") == commit


def test_nothing_can_be_written(face: Face) -> None:
    for path in (MODEL, f"{MODEL}/commit/main", f"{FILES}/config.json", "/api/repos/create"):
        for method in ("POST", "PUT", "DELETE"):
            answer = face.ask(path, method)
            assert answer.status_code == 405
            assert answer.headers["allow"] == "GET, HEAD"
            assert MESSAGE in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "..", "../config.json", "%2e%2e/config.json", "%2e%2e%2fconfig.json", "..%5cconfig.json", "./config.json", "/config.json", "//config.json",
        "config.json/", "config.json/x", "Config.json", "config.json%20", "%ff%fe", "gr%C3%B6%C3%9Fe", "%E2%80%AE",
        "", "%25", "a" * 9000, "/".join(["a"] * 2000), "%7f%01",
    ],
)  # fmt: skip
def test_hostile_paths_are_no_files(face: Face, view: reshard.CheckpointView, path: str) -> None:
    status, headers = face.ask_as_it_is(f"/hf{FILES}/{path}")
    assert (status, headers[CODE]) == (404, "EntryNotFound")
    assert headers["x-repo-commit"] == view.revision
    assert headers[MESSAGE].isascii()
    assert headers[MESSAGE].isprintable()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"/hf{FILES}/config.json%00", 400),
        (f"/hf{FILES}/config.json%0d%0aX-Evil:%201", 404),
        (f"/hf{FILES}/{'a' * 20_000}", 431),
        (f"/hf{MODEL}/tree/main?recursive=maybe", 422),
        (f"/hf{MODEL}/revision/%2e%2e%2f%2e%2e", 404),
        ("/hf//views/tiny/resolve/main/config.json", 404),
        ("/hf/views//resolve/main/config.json", 404),
        ("/hf/", 404),
        ("/hf/views/tiny/resolve/main", 404),
        (f"/hf{MODEL}/tree/main//", 404),
    ],
)
def test_other_hostile_targets_are_refused(face: Face, target: str, status: int) -> None:
    found, headers = face.ask_as_it_is(target)
    assert found == status
    assert headers["content-type"] == "application/problem+json"
    assert headers[MESSAGE].isprintable()
    assert "x-evil" not in headers


@pytest.mark.parametrize(
    ("kind", "code"),
    [(GONE, "RevisionNotFound"), (FORBIDDEN, "GatedRepo"), (NO_VIEW, None), (NOT_FOUND, "RevisionNotFound")],
)  # fmt: skip
def test_refusals_of_a_catalogue(face: Face, monkeypatch: Any, kind: Any, code: Any) -> None:
    async def refused(*_: object) -> None:
        raise ProblemError(kind, "größer\nthan allowed; take less")

    monkeypatch.setattr(OneView, "find", refused)
    for path in (MODEL, f"{FILES}/config.json"):
        answer = face.ask(path)
        assert answer.status_code == kind.status
        assert answer.headers.get(CODE) == code
        assert answer.headers[MESSAGE] == r"gr\xf6\xdfer\nthan allowed; take less"
        assert answer.json()["detail"] == "größer\nthan allowed; take less"


def test_a_source_that_changes_or_goes_is_told(source: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(source, copied)
    with reshard.open_view(copied) as view, face_of(view) as face:
        url = f"{FILES}/model.safetensors"
        part = {"Range": "bytes=1000-1999"}
        assert face.ask(url, headers=part).status_code == 206
        data = (copied / "model.safetensors").read_bytes()
        (copied / "model.safetensors").write_bytes(data)
        changed = face.ask(url)
        assert changed.status_code == 409
        assert CODE not in changed.headers
        # The folder is the person's who serves; a client knows the name of the view.
        assert changed.headers[MESSAGE].startswith(
            "views/tiny was changed since the view of it was planned; ask"
        )
        shutil.rmtree(copied)
        gone = face.ask(url)
        assert (gone.status_code, gone.headers[CODE]) == (410, "RevisionNotFound")
        assert "views/tiny is not there any more" in gone.json()["detail"]


def test_a_token_is_needed_where_there_is_one(view: reshard.CheckpointView) -> None:
    with face_of(view, "secret") as face:
        for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer ö"}, {"Authorization": "Basic secret"}):  # fmt: skip
            raw = {name: value.encode() for name, value in given.items()}
            answer = face.ask(f"{FILES}/config.json", headers=raw)
            assert answer.status_code == 401
            assert answer.headers[MESSAGE].startswith("a valid bearer token was expected")
        known = {"Authorization": "Bearer secret", "Cookie": f"{PLAIN_NAME}=x"}
        assert face.ask(f"{FILES}/config.json", headers=known).status_code == 200
        other = face.ask(MODEL, headers={**known, "Host": "gpu7:8080"})
        assert other.status_code == 200


def test_without_a_token_other_names_of_this_host_are_refused(face: Face) -> None:
    """Against a page of another site whose name was made to point here."""
    answer = face.ask(MODEL, headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "the request is for the host 'evil.example'" in answer.headers[MESSAGE]
    cookie = {"Cookie": f"{PLAIN_NAME}=of a server on another port"}
    assert face.ask(MODEL, headers=cookie).status_code == 200


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1000", "1000"), ("llama-3.1_8B", "llama-3.1_8B"), ("..run 7/step--final.", "run-7-step-final"), ("größe", "gr-e"),
        ("a...b", "a.b"), ("-", ""), ("x" * 200, "x" * 90),
        ("x" * 89 + "-y", "x" * 89),
    ],
)  # fmt: skip
def test_names_are_those_that_clients_take(text: str, name: str) -> None:
    assert clean_name(text) == name
    assert clean_name(name) == name


def test_json_is_that_of_a_hub(face: Face) -> None:
    assert json.loads(face.ask(f"{FILES}/config.json").content) == {"model_type": "llama"}
