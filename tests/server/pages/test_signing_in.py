"""Signing in and out, who is let in, and forms that come from our own pages only."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from reshard_server.pages.visitor import path_after

from tests.server.pages.browser import ORIGIN, Browser
from tests.server.served import Served
from tests.server.tokens import TOKENS, token_settings

NEW = {"source": "data/a", "target": "data/b", "do": "start"}


def test_a_page_leads_to_the_form_and_back(served: Served) -> None:
    browser = Browser(served)
    page = browser.go("/conversions?state=failed")
    assert (browser.status, browser.path) == (
        200, "/sign-in?after=%2Fconversions%3Fstate%3Dfailed"
    )  # fmt: skip
    assert page.form("/sign-in").fields == {"after": "/conversions?state=failed", "token": ""}
    page = browser.submit("/sign-in", token=f" {TOKENS['ann'][0]} ")
    assert (browser.status, browser.path) == (200, "/conversions?state=failed")
    assert "There are no failed conversions." in page.text
    assert TOKENS["ann"][0] not in browser.answer.text


def test_a_token_that_nobody_has(served: Served) -> None:
    browser = Browser(served)
    browser.go("/sign-in")
    page = browser.submit("/sign-in", token="rsh_wrong")
    assert browser.status == 401
    assert "The server does not know this token" in page.text
    assert 'aria-invalid="true" aria-describedby="token-error"' in browser.answer.text
    assert browser.cookie is None and "rsh_wrong" not in browser.answer.text


def test_signing_out_ends_the_session(ann: Browser) -> None:
    cookie = ann.cookie
    ann.go("/")
    ann.submit("/sign-out")
    assert (ann.path, ann.cookie) == ("/sign-in", None)
    ann.cookie = cookie
    ann.go("/")
    assert ann.path == "/sign-in"


def limited(serve: Callable[..., Served], per_minute: int) -> Served:
    """An application that allows so many requests in all: no time passes in which there would be more."""
    served = serve(requests_per_minute=per_minute)
    served.app.state.services.rates.clock = lambda: 0.0
    return served


def test_guessing_is_limited(serve: Callable[..., Served]) -> None:
    browser = Browser(limited(serve, 3))
    browser.go("/sign-in")
    page = browser.page
    for _ in range(3):
        browser.answer = browser.send(
            "POST", "/sign-in", data={"token": "x"}, headers={"Origin": ORIGIN}
        )
        assert browser.status == 401
    browser.answer = browser.send(
        "POST", "/sign-in", data={"token": TOKENS["ann"][0]}, headers={"Origin": ORIGIN}
    )
    assert (browser.status, browser.answer.headers["Retry-After"]) == (429, "20")
    assert "more than 3 requests in a minute" in browser.text
    assert page.form("/sign-in").method == "post"


def test_pages_count_among_the_requests_of_a_token(serve: Callable[..., Served]) -> None:
    browser = Browser(limited(serve, 4))
    browser.sign_in()
    seen = [browser.send("GET", "/schedules").status_code for _ in range(4)]
    assert seen == [200, 200, 200, 429]


@pytest.mark.parametrize(
    ("after", "path"),
    [
        ("/conversions?state=failed", "/conversions?state=failed"),
        ("", "/"), (None, "/"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\evil.example", "/"),
        ("/\nx", "/"), ("javascript:alert(1)", "/"), ("evil", "/"), ("/x\r\nSet-Cookie: a=b", "/"),
    ],
)  # fmt: skip
def test_it_leads_to_our_own_pages_only(after: str | None, path: str) -> None:
    assert path_after(after) == path


def test_without_tokens_nobody_signs_in(serve: Callable[..., Served]) -> None:
    served = serve(insecure=True, tokens=())
    browser = Browser(served)
    host = {"Host": "localhost"}
    answer = browser.send("GET", "/sign-in", headers=host)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    browser.answer = browser.send("GET", "/", headers=host)
    assert "no token needed" in browser.text
    assert browser.send("GET", "/", headers={"Host": "evil.example"}).status_code == 421
    data = {**NEW}
    refused = browser.send(
        "POST", "/new-conversion", data=data, headers={**host, "Origin": "http://evil.example"}
    )
    assert refused.status_code == 403
    made = browser.send(
        "POST", "/new-conversion", data=data, headers={**host, "Origin": "http://localhost"}
    )
    assert made.status_code == 303
    assert served.wakes == 1


def test_over_https_the_cookie_is_this_hosts_own(serve: Callable[..., Served]) -> None:
    served = serve(forwarded_allow_ips="127.0.0.1")
    tls = {"X-Forwarded-Proto": "https", "Accept": "text/html"}
    data = {"token": TOKENS["ann"][0]}
    origin = {"Origin": "https://test"}
    answer = served.ask("POST", "/sign-in", None, data=data, headers={**tls, **origin})
    served.client.cookies.clear()
    (cookie,) = answer.headers.get_list("set-cookie")
    name, _, value = cookie.partition(";")[0].partition("=")
    assert name == "__Host-reshard_session"
    assert cookie.endswith("; HttpOnly; Max-Age=43200; Path=/; SameSite=lax; Secure")

    def seen(name: str) -> int:
        shown = {**tls, "Cookie": f"{name}={value}"}
        return served.ask("GET", "/conversions", None, headers=shown).status_code

    assert (seen(name), seen("reshard_session")) == (200, 303)
    from_elsewhere = {**tls, "Cookie": f"{name}={value}", "Origin": "https://evil.example"}
    out = served.ask("POST", "/sign-out", None, data={}, headers=from_elsewhere)
    assert (out.status_code, seen(name)) == (403, 200)
    plain = served.ask("POST", "/sign-in", None, data=data, headers={"Origin": "http://test"})
    served.client.cookies.clear()
    assert plain.headers["set-cookie"].startswith("reshard_session=")


CHANGES = (
    "/new-conversion", "/new-schedule", "/conversions/{id}/cancel", "/conversions/{id}/retry", "/conversions/{id}/delete",
    "/schedules/s/pause", "/schedules/s/resume", "/schedules/s/run", "/schedules/s/delete", "/sign-out",
)  # fmt: skip


@pytest.fixture
def with_schedule(served: Served, ann: Browser) -> Browser:
    body = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
    assert served.ask("PUT", "/v1/schedules/s", json=body).status_code == 201
    return ann


@pytest.mark.parametrize("change", CHANGES)
def test_a_form_from_elsewhere_changes_nothing(
    served: Served, with_schedule: Browser, change: str
) -> None:
    ann, new = with_schedule, served.create()
    ann.go("/")
    key = ann.page.form("/sign-out").fields["form_key"]
    other = Browser(served)
    other.sign_in("bob")
    other.go("/")
    theirs = other.page.form("/sign-out").fields["form_key"]
    path = change.format(id=new)
    for headers, form_key in [
        ({}, key),
        ({"Origin": "http://evil.example"}, key),
        ({"Origin": "null"}, key),
        ({"Sec-Fetch-Site": "cross-site"}, key),
        ({"Origin": ORIGIN}, ""),
        ({"Origin": ORIGIN}, theirs),
    ]:
        answer = ann.send("POST", path, data={**NEW, "form_key": form_key}, headers=headers)
        assert answer.status_code == 403, (path, headers)
        assert "open the page again and send its form from there" in answer.text
    assert ann.send("GET", "/").status_code == 200
    assert served.ask("GET", f"/v1/conversions/{new}").json()["state"] == "queued"
    assert served.ask("GET", "/v1/schedules/s").json()["paused"] is False
    assert served.wakes == 1


def test_the_cookie_changes_nothing_through_the_api(served: Served, with_schedule: Browser) -> None:
    ann, new = with_schedule, served.create()
    headers = {"Origin": ORIGIN}
    for method, path in [
        ("POST", "/v1/conversions"), ("POST", f"/v1/conversions/{new}:cancel"), ("DELETE", f"/v1/conversions/{new}"),
        ("POST", "/v1/schedules/s:pause"), ("DELETE", "/v1/schedules/s"),
    ]:  # fmt: skip
        more = {"json": {"source": "data/a", "target": "data/b"}} if method == "POST" else {}
        assert ann.send(method, path, headers=headers, **more).status_code == 401, path
    assert ann.send("GET", f"/v1/conversions/{new}").status_code == 200
    events = ann.send("GET", f"/v1/conversions/{new}0/events")
    assert events.status_code == 404


@pytest.mark.parametrize("path", ["/conversions/{id}/cancel", "/new-conversion"])
def test_what_is_no_form_is_refused(served: Served, ann: Browser, path: str) -> None:
    path = path.format(id=served.create())
    answer = ann.send("POST", path, json=NEW, headers={"Origin": ORIGIN})
    assert answer.status_code == 415
    assert "expected a form of this server&#39;s pages" in answer.text
    many = {f"f{i}": "x" for i in range(200)}
    assert ann.send("POST", path, data=many, headers={"Origin": ORIGIN}).status_code == 400
    nul = ann.send("POST", path, data={"form_key": "a\0b"}, headers={"Origin": ORIGIN})
    assert nul.status_code == 400 and "NUL" in nul.text


def test_somebody_who_was_signed_out_is_told_so(served: Served, ann: Browser) -> None:
    ann.go("/new-conversion")
    ann.served.app.state.services.sessions.end_of_hash(token_settings()[0].sha256)
    page = ann.submit("/new-conversion", source="data/a", target="data/b", do="start")
    assert ann.status == 401
    assert "nobody is signed in, or the session has ended; sign in" in page.text
    assert "/sign-in" in page.links
    assert served.wakes == 0


def answer_of(browser: Browser, path: str, accept: str) -> httpx.Response:
    return browser.send("GET", path, headers={"Accept": accept})


def test_programs_are_told_problems_as_documents(served: Served) -> None:
    browser = Browser(served)
    found = answer_of(browser, "/conversions", "application/json")
    assert (found.status_code, found.headers["Content-Type"]) == (401, "application/problem+json")
    assert answer_of(browser, "/nothing", "*/*").json()["status"] == 404
    assert answer_of(browser, "/v1/conversions", "text/html").json()["status"] == 401
