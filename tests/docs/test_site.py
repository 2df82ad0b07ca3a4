"""The site of the documentation: every page is in it, and what leads nowhere ends its build."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import reshard_server.client
from playwright.sync_api import TimeoutError as StillWaitingError

import reshard
from docs.site.build import generated
from docs.site.check import wrong as wrong_in
from docs.site.links import BrokenLinkError, moved
from docs.site.lists import four_spaces
from docs.site.navigation import listed, missing
from docs.site.stage import MADE, ROOT, configuration, places_of_files
from reshard import rules
from tests.server.pages.chromium import chromium

GENERATOR = ROOT / ".oracles" / "docs" / "bin" / "zensical"
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    assert missing() == []


def test_every_page_of_the_navigation_is_there() -> None:
    places = {str(place) for place in places_of_files().values()}
    assert [page for page in listed() if page not in places] == []
    assert [page for page, times in Counter(listed()).items() if times > 1] == []


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    named = Counter(name for page in pages for name in NAMED.findall(page.read_text("utf-8")))
    names = {f"reshard.{name}" for name in reshard.__all__ if name != "__version__"}
    names |= {f"reshard_server.client.{name}" for name in reshard_server.client.__all__}
    names |= {
        "reshard.executors.ray.RayExecutor"
    }  # needs an extra, so that it is no name at the top
    names |= {f"reshard.rules.{name}" for name in rules.__all__}
    assert named == dict.fromkeys(names, 1)


def test_every_made_text_has_a_page() -> None:
    marks = [
        mark
        for page in (ROOT / "docs").rglob("*.md")
        for mark in re.findall(r"^<!-- made here: (.+) -->$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(marks) == sorted(MADE)


@pytest.mark.parametrize("name", MADE)
def test_made_texts_name_what_they_are_made_of(name: str) -> None:
    text = MADE[name]()
    expected = {
        "command line": ["## reshard convert {#convert}", "`--max-memory SIZE`", "$ reshard diff"],
        "http api": ["### `POST /v1/conversions` {#", "| 422 |", "### Problem {#Problem}"],
        "formats": [
            "| Orbax, OCDBT | `to='orbax', ocdbt=True` |",
            "| safetensors, DCP | 19 | 19 |",
        ],
        "decisions": ["](0000-record-decisions.md)"],
    }
    assert [words for words in expected[name] if words not in text] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# Page\n\n[gone](gone.md)\n", "page does not exist"),
        ("# Page\n\n[gone](index.md#gone)\n", "anchor does not exist"),
        ("# Page\n\n[gone][reshard.gone]\n", "unresolved"),
        ("# Page\n\n::: reshard.gone\n", "reshard.gone"),
        ('# Page\n\n<a href="gone.html">gone</a>\n', "index.html: gone.html leads nowhere"),
        ("# Page\n\nText:\n- an item\n", "index.html: Markdown in a paragraph"),
        ('# Page\n\n<img src="https://example.com/a.png">\n', "index.html: loads https://example"),
    ],
)
def test_the_build_fails_where_a_page_is_wrong(text: str, complaint: str, tmp_path: Path) -> None:
    (wrong,) = made(tmp_path, text)
    assert complaint in wrong


def test_links_are_those_of_the_site(tmp_path: Path) -> None:
    docs, code = tmp_path / "docs" / "a" / "page.md", tmp_path / "deploy" / "file.conf"
    places = {docs: Path("a/page.md"), code: Path("deploy/file.conf")}
    text = (
        "[x](../../deploy/file.conf#y) [z](https://z.org) [p](page.md)\n\n```text\n[a](b.md)\n```\n"
    )
    assert moved(text, docs, places) == text.replace("../../deploy", "../deploy")
    with pytest.raises(BrokenLinkError, match=r"page\.md: gone\.md is not part of the site"):
        moved("[x](gone.md)", docs, places)


LISTS = """\
Text:
- one
  more
- two:

  ```sh
  a
    b
  ```

  1. deep
     deeper
- three

After
```text
- no list
  of any kind
```
"""


def test_lists_are_nested_by_four_spaces() -> None:
    """As Python-Markdown reads them; what is code stays as it is."""
    assert four_spaces(LISTS) == LISTS.replace("Text:\n", "Text:\n\n").replace(
        "  more", "    more"
    ).replace("  ```sh\n  a\n    b\n  ```", "    ```sh\n    a\n      b\n    ```").replace(
        "  1. deep\n     deeper", "    1. deep\n        deeper"
    )


def test_the_check_reads_ids_and_files(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x">A</h1><a href="b.html#y"></a><a href="#x"></a><a href="#z"></a>'
        '<script src="//cdn.org/a.js"></script><link rel="canonical" href="https://a.org">'
    )
    (tmp_path / "b.html").write_text(
        '<h1 id="y">B</h1><a href="c/">C</a><a href="https://b.org">D</a>'
    )
    (tmp_path / "c.css").write_text("@import url('https://fonts.org/f.css');")
    assert list(wrong_in(tmp_path)) == [
        "a.html: loads //cdn.org/a.js",
        "a.html: #z leads nowhere",
        "b.html: c/ leads nowhere",
        "c.css: loads https://fonts.org/f.css",
    ]


def test_docstrings_are_read_as_written(tmp_path: Path) -> None:
    """An entry for two arguments stands for both, an example is code, and a record shows each of its fields."""
    assert (
        made(
            tmp_path,
            "# Page\n\n::: reshard.inspect\n\n::: reshard.plan\n\n::: reshard.TensorInfo\n",
        )
        == []
    )
    page = (tmp_path / "site" / "index.html").read_text()
    names = re.findall(r"<tr[^>]*>\s*<td>\s*<code>(?:<[^>]+>)*(\w+)", page)
    assert (names.count("step"), names.count("item")) == (2, 3)  # a record of a tensor has its item
    assert {"target", "max_memory", "options"} <= set(names)
    fields = reshard.TensorInfo.__struct_fields__
    assert names[-len(fields) :] == list(fields)
    assert "Bases" not in page
    assert "<blockquote>" not in page
    assert 'class="language-pycon' in page


def test_pages_open_and_are_searched_without_a_server(tmp_path: Path) -> None:
    """Nothing fails, and nothing is asked of another host."""
    assert (
        made(tmp_path, "# Page\n\n## Tides\n\nA shard drifts.\n\n```console\n$ reshard demo\n```\n")
        == []
    )
    asked: list[str] = []
    wrong: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto((tmp_path / "site" / "index.html").as_uri())
        assert page.locator("pre code").text_content() == "reshard demo\n"  # what people copy
        search = page.get_by_placeholder("Search").last
        for _ in range(10):
            page.keyboard.press("Control+k")  # nobody hears it before the page's scripts have run
            with suppress(StillWaitingError):
                search.wait_for(timeout=6_000)
                break
        search.fill("drift")
        page.get_by_role("link", name="Tides").last.wait_for()
    assert wrong == []
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data", "about", "blob"}


def made(folder: Path, text: str) -> list[str]:
    """What is wrong with a site of one page."""
    assert GENERATOR.exists(), (
        "the generator of the docs is not there; install it with: make oracles"
    )
    without_navigation = re.sub(
        r"^nav = \[.*?^\]$", "", configuration(), flags=re.DOTALL | re.MULTILINE
    )
    (folder / "pages" / "site").mkdir(parents=True)
    for name in ("extra.css", "worker.js"):
        shutil.copyfile(ROOT / "docs" / "site" / name, folder / "pages" / "site" / name)
    (folder / "pages" / "index.md").write_text(text)
    (folder / "zensical.toml").write_text(without_navigation)
    return generated(folder, GENERATOR)
