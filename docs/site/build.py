"""Builds the site: ``python -m docs.site.build build/docs .oracles/docs/bin/zensical``.

Puts the pages together, runs the generator over them, and looks at what it made. Whatever any of them finds wrong ends
the build: a link that leads nowhere, a cross-reference to nothing, a docstring that names an argument that is not there,
a page that is missing in the navigation.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from docs.site.check import wrong as wrong_in
from docs.site.navigation import missing
from docs.site.stage import stage

_FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
_PROMPT = '<span class="gp">$ </span>'
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(
    r"^(?:griffe|mkdocs\w*|mkdocs_autorefs|WARNING|ERROR|Warning|Error)\b.*:", re.MULTILINE
)


def build(folder: Path, generator: Path) -> list[str]:
    """Builds the site in ``folder / "site"``; what is wrong, a line each."""
    stage(folder)
    return [*missing(), *generated(folder, generator)]


def generated(folder: Path, generator: Path) -> list[str]:
    """Runs the generator in a folder that has ``zensical.toml`` and ``pages``; what is wrong, a line each."""
    done = subprocess.run(
        [generator.resolve(), "build", "--strict", "--clean"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = _COLOURS.sub("", done.stdout + done.stderr).partition("\nTraceback")[0]
    if done.returncode or _COMPLAINT.search(said):
        return [f"{generator.name} ended with {done.returncode} and said:\n{said}"]
    for page in (folder / "site").rglob("*.html"):
        page.write_text(mended(page.read_text("utf-8"), page, folder / "site"), "utf-8")
    return list(wrong_in(folder / "site"))


def mended(text: str, page: Path, site: Path) -> str:
    """A page that loads our ``worker.js`` instead of the generator's of another host, and whose prompts are not copied."""
    own = os.path.relpath(site / "site" / "worker.js", page.parent)
    return text.replace(_FOREIGN_WORKER, own).replace(_PROMPT, '<span class="gp"></span>')


def main() -> None:
    """Builds, says what is wrong, and ends with 1 where something is."""
    folder, generator = map(Path, sys.argv[1:])
    wrong = build(folder, generator)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"the site is in {folder / 'site'}; open {folder / 'site' / 'index.html'}")


if __name__ == "__main__":
    main()
