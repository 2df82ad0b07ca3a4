"""A headless chromium that notes whatever goes wrong on a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.server.tokens import TOKENS

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
SHOWN = "PAGES_SHOWN"
"""Names, in the environment, a folder for screenshots of every page, wide and narrow, light and dark."""

PATIENCE_MILLISECONDS = 90_000
"""For anything that a page is waited for; a busy machine is slow."""

_NOTE_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`refused by the policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; fails if Debian's chromium is missing."""
    path = shutil.which("chromium")
    assert path is not None, "chromium is not there; install it with: make tools"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Person:
    """Somebody at a browser of their own."""

    context: BrowserContext
    url: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.set_default_timeout(PATIENCE_MILLISECONDS)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda m: self._note(m.type, m.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, who: str = "ann") -> Page:
        page = self.go("/sign-in")
        page.get_by_label("Token").fill(TOKENS[who][0])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}/")
        return page


@contextmanager
def person(browser: Browser, url: str, **options: Any) -> Iterator[Person]:
    """Somebody; at the end nothing may have gone wrong on any page."""
    context = browser.new_context(**options)
    if options.get("java_script_enabled", True):
        context.add_init_script(_NOTE_VIOLATIONS)
    try:
        found = Person(context, url)
        yield found
        assert found.wrong == []
    finally:
        context.close()
