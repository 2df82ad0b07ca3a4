"""A browser without JavaScript: it keeps a cookie, follows redirects, and sends the forms of the page it is on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any

import httpx

from tests.server.served import Served
from tests.server.tokens import TOKENS

ORIGIN = "http://test"
VOID = frozenset({"input", "meta", "link", "br", "wbr"})
BREAK = "\0"
"""Where a word may be broken."""


@dataclass
class Form:
    """A form: its address, its fields' values, and its buttons' names and values."""

    method: str
    action: str
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """Forms, links, headings and the text of a page; tags that do not match are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self._area: str | None = None
        self._select: str | None = None
        self.feed(html)
        self.close()
        assert self._open == [], self._open
        assert len(self.ids) == len(set(self.ids)), self.ids

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace(f" {BREAK} ", "").split())

    def form(self, action: str) -> Form:
        """The last of the forms that go there."""
        return [f for f in self.forms if f.action == action][-1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self._open.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag == "wbr":
            self.words.append(BREAK)
        elif tag == "a":
            self.links.append(given["href"] or "")
        elif tag == "form":
            self.forms.append(Form(given["method"] or "get", given["action"] or ""))
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))
        self._field(tag, given)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def _field(self, tag: str, given: dict[str, str | None]) -> None:
        name = given.get("name")
        if tag == "input" and name and (given.get("type") != "checkbox" or "checked" in given):
            self.forms[-1].fields[name] = given.get("value") or ""
        elif tag == "textarea" and name:
            self._area = name
            self.forms[-1].fields[name] = ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in given and "value" in given:
            self.forms[-1].fields[self._select] = given["value"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self._open.pop() == tag, (tag, self._open)
        if tag == "textarea" and self._area:
            fields = self.forms[-1].fields
            fields[self._area] = fields[self._area].removeprefix("\n")
            self._area = None

    def handle_data(self, data: str) -> None:
        if self._area:
            self.forms[-1].fields[self._area] += data
        self.words.append(data)
        if self._open and self._open[-1] in ("h1", "h2", "h3", "span", "code") and self.headings:
            inside = [t for t in self._open if t in ("h1", "h2", "h3")]
            if inside:
                level, text = self.headings[-1]
                self.headings[-1] = level, text + data


@dataclass
class Browser:
    """On one page at a time."""

    served: Served
    cookie: str | None = None
    path: str = ""
    answer: httpx.Response = field(default_factory=lambda: httpx.Response(200))

    @property
    def page(self) -> Page:
        return Page(self.answer.text)

    @property
    def text(self) -> str:
        return self.page.text

    @property
    def status(self) -> int:
        return self.answer.status_code

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request, as a browser sends it."""
        headers = {"Accept": "text/html,*/*;q=0.8", **more.pop("headers", {})}
        if self.cookie:
            headers["Cookie"] = f"reshard_session={self.cookie}"
        answer = self.served.ask(method, path, None, headers=headers, **more)
        for line in answer.headers.get_list("set-cookie"):
            self.cookie = SimpleCookie(line)["reshard_session"].value or None
        self.served.client.cookies.clear()
        return answer

    def go(self, path: str) -> Page:
        """Opens a page, and follows redirects."""
        self.path, self.answer = path, self.send("GET", path)
        return self._followed()

    def submit(self, action: str, fields: dict[str, str] | None = None, **more: str) -> Page:
        """Sends a form of this page with some fields changed."""
        form = self.page.form(action)
        assert form.method == "post"
        data = {**form.fields, **(fields or {}), **more}
        self.path = action
        self.answer = self.send("POST", action, data=data, headers={"Origin": ORIGIN})
        return self._followed()

    def _followed(self) -> Page:
        for _ in range(5):
            if self.answer.status_code != 303:
                return self.page
            self.path = self.answer.headers["Location"]
            self.answer = self.send("GET", self.path)
        raise AssertionError("redirected in a circle")

    def sign_in(self, who: str = "ann") -> Page:
        self.go("/sign-in")
        return self.submit("/sign-in", token=TOKENS[who][0])


def at_once(text: str) -> str:
    """The text of a page with every duration as ``0.0 s``: a test does not say how fast it runs."""
    return re.sub(r"\b(?:\d+ min )?\d+(?:\.\d)? s\b", "0.0 s", text)
