"""A page of another site, in a real browser: its links lead to our pages, and nothing that it sends changes anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from playwright.sync_api import Browser, expect

from tests.server.live import live
from tests.server.pages.chromium import person
from tests.server.waiting import until


@contextmanager
def other_site(html: str) -> Iterator[str]:
    """The URL of a page at ``localhost``, which for a browser is another site than 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_link_leads_to_the_page_and_a_form_to_nothing(browser: Browser, tmp_path: Path) -> None:
    with live(tmp_path, module="tests.server.idle") as server, person(browser, server.url) as ann:
        ann.sign_in()
        html = f"""<a href="{server.url}/conversions">look</a>
            <form method="post" action="{server.url}/sign-out"><button>win</button></form>"""
        with other_site(html) as url:
            page = ann.page
            page.goto(url)
            page.get_by_role("link", name="look").click()
            page.wait_for_url(f"{server.url}/conversions")
            expect(page.get_by_role("heading", level=1)).to_have_text("Conversions")
            page.goto(url)
            page.get_by_role("button", name="win").click()
            page.wait_for_url(f"{server.url}/sign-out")
            expect(page.get_by_text("Sec-Fetch-Site is 'cross-site'")).to_be_visible()
            ann.go("/conversions")
            expect(page.get_by_role("heading", level=1)).to_have_text("Conversions")
            ann.wrong[:] = [text for text in ann.wrong if "403" not in text]


def test_a_script_cannot_pause_a_schedule_where_no_token_is_needed(
    browser: Browser, tmp_path: Path
) -> None:
    body = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
    with live(tmp_path, "--insecure", module="tests.server.idle") as server:
        assert httpx.put(f"{server.url}/v1/schedules/s", json=body).status_code == 201
        with other_site("<p>evil</p>") as url, person(browser, server.url) as somebody:
            somebody.page.goto(url)
            sent = somebody.page.evaluate(
                """async (url) => (await fetch(url, {method: "POST", mode: "no-cors"})).type""",
                f"{server.url}/v1/schedules/s:pause",
            )
            assert sent == "opaque"  # it was sent, and answered
            somebody.wrong.clear()
        assert httpx.get(f"{server.url}/v1/schedules/s").json()["paused"] is False
        told = until(
            lambda: [x["status"] for x in server.lines() if x.get("path", "").endswith(":pause")]
        )
        assert told == [403]
