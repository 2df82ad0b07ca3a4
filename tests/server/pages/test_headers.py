"""The headers of every page, and the files of the pages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from reshard_server.app import create_app
from reshard_server.settings import Settings

from tests.server.pages.browser import Browser
from tests.server.served import Served

ROOT = Path(__file__).parents[3]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PATHS = (
    "/", "/conversions", "/new-conversion", "/schedules", "/new-schedule", "/checkpoints", "/views", "/nothing",
    "/conversions/none", "/schedules/none", "/conversions?state=odd", "/checkpoints?root=other",
)  # fmt: skip


@pytest.mark.parametrize("path", [*PATHS, "/sign-in"])
def test_every_page(ann: Browser, path: str) -> None:
    answer = ann.send("GET", path)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Request-Id"]
    ann.answer = answer
    levels = [level for level, _ in ann.page.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for forbidden in (" style=", " onclick=", "<script>", "javascript:"):
        assert forbidden not in answer.text


def test_redirects_have_them_too(served: Served) -> None:
    answer = Browser(served).send("GET", "/")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in")
    assert answer.headers["Content-Security-Policy"] == POLICY


def test_static_files_are_kept_by_browsers(ann: Browser) -> None:
    ann.go("/")
    for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
        start = ann.answer.text.index(f"/static/{name}?v=")
        url = ann.answer.text[start : ann.answer.text.index('"', start)]
        answer = Browser(ann.served).send("GET", url)
        assert answer.status_code == 200 and len(answer.content) > 1000
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for name in ("base.html", "..%2Frendering.py", "x.css"):
        assert ann.send("GET", f"/static/{name}").status_code == 404


def test_errors_of_the_server_are_pages(ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("reshard_server.pages.conversion_pages.conversions.count_by_state", fail)
    page = ann.go("/")
    assert ann.status == 500
    assert "the server met an error that is its own" in page.text
    assert "secret" not in ann.answer.text
    assert ann.answer.headers["Content-Security-Policy"] == POLICY


def test_methods_that_a_page_has_not(ann: Browser) -> None:
    answer = ann.send("DELETE", "/conversions")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert "The method is not allowed here" in answer.text


def test_a_page_that_ends_is_told_so(serve: Callable[..., Served]) -> None:
    served = serve()
    browser = Browser(served)
    browser.sign_in()
    browser.go("/new-conversion")
    served.portal.call(served.app.state.drain.started.set)
    page = browser.submit("/new-conversion", source="data/a", target="data/b", do="start")
    assert browser.status == 503
    assert "this server is ending and accepts no new work" in page.text
    assert page.form("/new-conversion").fields["source"] == "data/a"


def test_pages_are_no_part_of_the_api() -> None:
    paths = create_app(Settings()).openapi()["paths"]
    assert all(
        path.startswith("/v1/") or path in ("/livez", "/readyz", "/metrics") for path in paths
    )


def test_the_wheel_has_templates_and_static_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "server" / "reshard_server" / "pages"
    files = [*folder.glob("templates/**/*.html"), *folder.glob("static/*")]
    assert len(files) > 10
    assert {str(f.relative_to(ROOT / "server")) for f in files} <= packed
