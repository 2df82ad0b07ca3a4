"""The looks of a page that tests check: wide and narrow, light and dark, with axe, and without anything clipped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

LOOKS: list[tuple[int, Literal["light", "dark"]]] = [
    (1280, "light"), (390, "dark"), (1280, "dark"), (390, "light"),
]  # fmt: skip
CLIPPED = """() => [...document.querySelectorAll("main *, header *")]
  .filter((at) => at.checkVisibility() && !at.closest("pre, svg, #status, .unseen, thead, caption, select, .skip"))
  .filter((at) => at.getBoundingClientRect().right > innerWidth + 1 || at.scrollWidth > at.clientWidth + 1
    && getComputedStyle(at).display !== "inline" && !["INPUT", "TEXTAREA", "PROGRESS"].includes(at.tagName))
  .map((at) => at.outerHTML.slice(0, 150)).slice(0, 3).join()"""
"""Elements of a page that extend beyond the window, or are wider than their parent."""

ALIKE = "main > section > section:nth-of-type(n+2)"
"""All operations and models of the API but the first of each kind: of one template, and axe takes seconds for them."""


def check(page: Page, found: dict[str, str], folder: Path | None, name: str) -> None:
    """Looks at the sizes of a page in each look; axe looks at it once, wide and light or narrow and dark, or in all that are shown."""
    looks = LOOKS if folder else LOOKS[:2]
    for number, (width, scheme) in enumerate(looks):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        if folder or number == len(name) % 2:
            results = Axe().run(page, None if folder else {"exclude": [ALIKE]})
            assert results.response["passes"], "axe looked at nothing"
            if results.violations_count:
                found[f"{name} {width} {scheme}"] = results.generate_report()
        if page.evaluate("document.scrollingElement.scrollWidth > innerWidth"):
            found[f"{name} is too wide"] = page.url
        if width < 400 and (clipped := page.evaluate(CLIPPED)):
            found[f"{name} is clipped"] = clipped
        if folder:
            file = folder / f"{name.replace(' ', '-')}-{width}-{scheme}.png"
            page.screenshot(path=file, full_page=True)
