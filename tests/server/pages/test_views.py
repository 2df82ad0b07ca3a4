"""Views as pages: listed with their newest revisions and readers, and a page with files, revisions, rules and commands for clients."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from reshard_server.pages import view_pages as pages
from reshard_server.pages.rendering import size_text
from reshard_server.settings import TokenSettings
from reshard_server.views import recorded
from reshard_server.views.recorded import RecordedViews

import reshard
from tests.server.pages.browser import Browser
from tests.server.served import Served
from tests.server.tokens import TOKENS, token_documents
from tests.server.views.run import put, revisions, save_step, views_of

NO_RULE = {"map": [{"from": "params/none", "to": "w"}]}


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Path:  # noqa: ARG001  it makes the root
    """A training run of two steps."""
    run = tmp_path / "data" / "run"
    run.mkdir()
    for step in (1, 2):
        save_step(run, step)
    return run


def commands(browser: Browser) -> dict[str, str]:
    """The commands on a page, by client."""
    found = re.findall(r'Command for ([^"]+)">(.*?)</pre>', browser.answer.text, re.DOTALL)
    return {client: html.unescape(text) for client, text in found}


def test_none_yet(ann: Browser) -> None:
    page = ann.go("/views")
    assert "No view is stored yet." in page.text
    assert "/docs#put_view" in page.links
    assert 'id="put_view"' in ann.send("GET", "/docs").text
    for name, title in (("none", "There is nothing here"), ("none@1", "The request is not valid")):
        assert ann.go(f"/views/{name}").headings[0] == (1, title)


@pytest.mark.usefixtures("run")
def test_listed_with_the_newest_revision_or_the_reason_for_none(
    served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rules in (("each", {"step": "each"}), ("later", {"source": "data/later"})):
        assert put(served, name, **rules).status_code == 201
    page = ann.go("/views")
    newest = revisions(served, "each")[0]["commit"]
    assert f"each from data/run step 2, changed just now {newest[:12]} 0 –" in page.text, page.text
    assert "later from data/later none: data/later has no finished checkpoint yet" in page.text
    assert [x for x in page.links if x.startswith("/views/")] == ["/views/each", "/views/later"]
    monkeypatch.setattr(pages, "PAGE_SIZE", 1)
    (further,) = [link for link in ann.go("/views").links if "page_token" in link]
    page = ann.go(further)
    assert "later" in page.text and "each" not in page.text
    assert "page_token was not made" in ann.go("/views?page_token=x").text


@pytest.mark.usefixtures("run")
def test_the_list_does_not_wait_for_a_storage_that_hangs(
    served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("v", "w"):
        assert put(served, name).status_code == 201
    asked: list[str] = []
    answers = asyncio.Event()

    async def hang(_: RecordedViews, __: object, name: str) -> None:
        asked.append(name)
        await answers.wait()

    monkeypatch.setattr(RecordedViews, "revision", hang)
    monkeypatch.setattr(pages, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(pages, "LOOKS", 1)
    page = ann.go("/views")
    for name in ("v", "w"):
        assert f"{name} from data/run not known: its storage has not answered yet" in page.text
    served.portal.call(answers.set)
    served.portal.call(asyncio.sleep, 0)
    assert asked == ["v"]  # nothing is looked for when the page is sent


def test_only_views_whose_sources_may_be_read(
    served: Served, ann: Browser, signed_in: Callable[[str], Browser]
) -> None:
    assert put(served, "theirs", "bob", source="other/run").status_code == 201
    assert put(served, "mixed", "bob", source="data/run", config="other/c").status_code == 201
    page = ann.go("/views")
    assert "No view is stored yet." in page.text
    for path in ("/views/theirs", "/views/mixed"):
        assert ann.go(path).headings[0] == (1, "There is nothing here")
    assert "theirs" in signed_in("bob").go("/views").text
    assert signed_in("root").go("/views/mixed").headings[0] == (1, "View mixed")


def test_files_are_downloaded_with_the_session(served: Served, ann: Browser, run: Path) -> None:
    assert put(served, step="latest", file_bytes=64).status_code == 201
    page = ann.go("/views/v")
    with reshard.open_view(run / "2", file_bytes=64) as view:
        expected = {path: b"".join(file.read()) for path, file in view.files.items()}
    links = [link for link in page.links if link.startswith("/hf/")]
    commit = revisions(served)[0]["commit"]
    assert links == [f"/hf/views/v/resolve/{commit}/{path}" for path in expected]
    for link, data in zip(links, expected.values(), strict=True):
        answer = ann.send("GET", link)
        assert (answer.content, answer.headers["Content-Type"]) == (
            data,
            "application/octet-stream",
        )
    assert f"{len(expected)} files, {size_text(sum(map(len, expected.values())))}" in page.text
    assert "model.safetensors.index.json 180 B 1b04b95a10e28b7d" in page.text, page.text
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1 and all(after - before <= 1 for before, after in pairwise(levels))


def test_revisions(
    served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    assert put(served, step="each").status_code == 201
    new, old = (one["commit"] for one in revisions(served))
    page = ann.go("/views/v")
    assert "each step of data/run" in page.text
    assert f"{new} shown here 2 just now yes {old} 1 just now when it is read" in page.text
    page = ann.go(f"/views/v?revision={old}")
    assert f"Files of revision {old}" in page.text and f"{old} shown here 1" in page.text
    assert f"/hf/views/v/resolve/{old}/model.safetensors" in page.links
    assert commands(ann)["hf download"].endswith(f"hf download views/v --revision {old}")
    assert commands(ann)["reshard"].endswith(f"reshard convert hf://views/v@{old} OUT")
    monkeypatch.setattr(pages, "MOST_REVISIONS", 1)
    assert f"{old} " not in ann.go("/views/v").text
    (older,) = [link for link in ann.page.links if "before" in link]
    page = ann.go(older)
    assert f"{old} 1" in page.text and f"{new} shown" not in page.text
    assert "/views/v" in page.links
    assert "None that are earlier." in ann.go("/views/v?before=1").text
    monkeypatch.setattr(recorded, "LOOK_SECONDS", 0)
    (run / "1" / "_CHECKPOINT_METADATA").unlink()
    page = ann.go(f"/views/v?revision={old}")
    assert ann.status == 410 and "is not there any more" in page.text and commands(ann) == {}


@pytest.mark.usefixtures("run")
def test_the_reason_why_there_are_no_files(served: Served, ann: Browser) -> None:
    assert put(served, "wrong", step="latest", map=NO_RULE).status_code == 201
    assert put(served, "later", source="data/later").status_code == 201
    page = ann.go("/views/wrong")
    assert ann.status == 200
    assert "The view cannot be read map[0] (map): 'params/none' matches none of the 2" in page.text
    assert '"from": "params/none"' in page.text  # its rules are shown nevertheless
    page = ann.go("/views/later")
    assert ann.status == 200
    assert "data/later has no finished checkpoint yet" in page.text and "None yet." in page.text
    assert commands(ann) == {}
    page = ann.go("/views/wrong?revision=other")
    assert ann.status == 404 and "has no revision 'other'" in page.text


def test_the_commands_of_clients(serve: Callable[..., Served], tmp_path: Path) -> None:
    given = [TokenSettings.model_validate({**one, "s3_secret": None}) for one in token_documents()]
    given[0] = given[0].model_copy(update={"s3_secret": "a-secret-of-this-token"})
    url = "http://models.example:8000"
    served = serve(tokens=given, public_url=url)
    save_step(tmp_path / "data", 1)
    assert put(served, source="data/1").status_code == 201
    assert put(served, "orbax", source="data/1", to="orbax").status_code == 201
    hub = f"export HF_ENDPOINT={url}/hf HF_TOKEN=TOKEN\n"
    key = f"export AWS_ENDPOINT_URL={url}/s3 AWS_ACCESS_KEY_ID=ann AWS_SECRET_ACCESS_KEY=SECRET"
    ann, bob = Browser(served), Browser(served)
    for browser, who in ((ann, "ann"), (bob, "bob")):
        browser.cookie = served.app.state.services.sessions.begin(TOKENS[who][0]).cookie
    assert "SECRET is its secret for S3." in ann.go("/views/v").text
    assert commands(ann) == {
        "hf download": f"{hub}hf download views/v",
        "reshard": f"{hub}reshard convert hf://views/v OUT",
        "AWS CLI": f"{key}\naws s3 sync s3://views/v v",
        "boto3": f"""{key}\npython -c 'import boto3; boto3.client("s3").download_file("views", "v/FILE", "FILE")'""",
        "transformers": f"""{hub}python -c 'import transformers; transformers.AutoModel.from_pretrained("views/v")'""",
        "vLLM": f"{key} RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING=0\nvllm serve s3://views/v --load-format runai_streamer",
    }
    assert "The view has no config.json , which transformers and vLLM need" in ann.text
    ann.go("/views/orbax")
    assert list(commands(ann)) == ["hf download", "reshard", "AWS CLI", "boto3"]
    assert "config.json" not in ann.text
    assert "KEY is the name of one that has a secret for S3" in bob.go("/views/v").text
    assert "AWS_ACCESS_KEY_ID=KEY " in commands(bob)["AWS CLI"]


def test_the_commands_without_tokens(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(insecure=True, tokens=())
    save_step(tmp_path / "data", 1)
    host = {"Host": "localhost:8080"}
    rules = {"view": {"source": "data/1"}}
    assert served.ask("PUT", "/v1/views/v", None, json=rules, headers=host).status_code == 201
    browser = Browser(served)
    browser.answer = browser.send("GET", "/views/v", headers=host)
    found = commands(browser)
    assert (
        found["hf download"] == "export HF_ENDPOINT=http://localhost:8080/hf\nhf download views/v"
    )
    assert " AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any\n" in found["AWS CLI"]
    assert "TOKEN" not in browser.text


@pytest.mark.usefixtures("run")
def test_readers(served: Served, ann: Browser, signed_in: Callable[[str], Browser]) -> None:
    assert put(served, step="latest").status_code == 201
    assert "Your token does not read it" in ann.go("/views/v").text
    views = views_of(served)
    caller = served.app.state.services.tokens.named("ann")
    found = served.portal.call(views.find, caller, "v")
    streams = [views.loads.counted(found, who, iter([bytes(20_480)] * 2)) for who in ("ann", "bob")]
    for stream in streams:
        next(stream)
    root = signed_in("root")
    assert re.search(r"v from data/run .* 1 2.00 KiB/s", ann.go("/views").text)
    assert re.search(r"v from data/run .* 2 4.00 KiB/s", root.go("/views").text)
    assert "ann 1 2.00 KiB/s" in ann.go("/views/v").text and "bob" not in ann.text
    assert "ann 1 2.00 KiB/s bob 1 2.00 KiB/s" in root.go("/views/v").text


def test_hostile_names_stay_text(served: Served, ann: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>'\"&"
    reshard.save(tmp_path / "data" / hostile, {hostile: np.zeros((2, 2), np.float32)})
    assert put(served, source=f"data/{hostile}", to="orbax").status_code == 201
    for path in ("/views", "/views/v"):
        page = ann.go(path)
        assert hostile in page.text and "<img" not in ann.answer.text
    links = [link for link in page.links if "onerror" in link and link.startswith("/hf/")]
    assert links and all(ann.send("GET", link).status_code == 200 for link in links)
    answer = ann.send("GET", "/views/v", headers={"Host": '"><script>x'})
    assert answer.status_code == 200 and "<script>" not in answer.text
    ann.go("/views/v?revision=" + "%3Cscript%3E")
    assert ann.status == 404 and "<script>" not in ann.answer.text
    assert not any(hostile[:4] in text for text in commands(ann).values())


@pytest.mark.usefixtures("run")
def test_long_lists_are_cut(served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(served, to="orbax", step="latest").status_code == 201
    monkeypatch.setattr(pages, "MOST_FILES", 2)
    monkeypatch.setattr(pages, "LONGEST_SHOWN", 9)
    page = ann.go("/views/v")
    commit = revisions(served)[0]["commit"]
    assert "The first 2 of " in page.text
    assert len([link for link in page.links if link.startswith("/hf/")]) == 2
    for link in (f"/v1/views/v/files?revision={commit}", "/v1/views/v", "/v1/views/v/versions"):
        assert link in page.links and ann.send("GET", link).status_code == 200
