"""The steps of a Markdown page: what a reader types, pastes and saves, in order.

==============================  =====================================================================
fenced block                    step
==============================  =====================================================================
``console``                     each line behind ``$ `` is a command (joined with the next one where it
                                ends in a backslash); the lines below it are the output to expect
``python``                      code for the page's one interpreter
``text`` behind ``python``      the output to expect of that code
any, begins with ``# NAME.ext``  a file, which is written and not run; ``#!`` may stand above the name
any, below ``<!-- not run: …``  for the eyes; the comment says why it is not run
==============================  =====================================================================

Every other block is for the eyes. ``tests.docs.test_every_block`` asks for a reason where that is code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Literal

FENCED = re.compile(
    r"(?:^ *<!-- not run: (?P<why>[^\n]+) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
FILE_NAME = re.compile(r"(?:#![^\n]+\n)?# ([\w./-]+\.\w+)\n")


@dataclass(frozen=True)
class Step:
    """One thing that a reader does, the line of the page it stands on, and the output the page shows."""

    kind: Literal["command", "python", "file"]
    line: int
    text: str
    shown: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of the page on which the text begins, and why it is not run."""

    language: str
    text: str
    line: int
    not_run: str | None = None


def blocks(page: str) -> Iterator[Block]:
    """Every fenced block, in order."""
    for found in FENCED.finditer(page):
        line = page.count("\n", 0, found.start("text")) + 1
        yield Block(found["language"], dedent(found["text"]), line, found["why"])


def code_of(page: Path, language: str) -> list[str]:
    """The texts of the blocks of one language on a page, in order."""
    found = blocks(page.read_text("utf-8"))
    return [block.text for block in found if block.language == language]


def steps(page: str) -> list[Step]:
    """Every step, in order."""
    made: list[Step] = []
    previous = ""
    for block in blocks(page):
        if block.not_run:
            continue
        if named := FILE_NAME.match(block.text):
            made.append(Step("file", block.line, block.text, name=named[1]))
        elif block.language == "console":
            made.extend(commands(block))
        elif block.language == "python":
            made.append(Step("python", block.line, block.text))
        elif block.language == "text" and previous == "python" and made[-1].kind == "python":
            made[-1] = replace(made[-1], shown=block.text)
        previous = block.language
    return made


def commands(block: Block) -> Iterator[Step]:
    """The commands of a console block, each with the output that is shown below it."""
    found: Step | None = None
    goes_on = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if goes_on and found:
            found = replace(found, text=f"{found.text}\n{line}")
        elif line.startswith("$ "):
            if found:
                yield found
            found = Step("command", number, line[2:])
        elif found:
            found = replace(found, shown=f"{found.shown or ''}{line}\n")
        goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
    if found:
        yield found


def is_as_shown(shown: str, said: str) -> bool:
    """Whether output is what a page shows: ``…`` stands for any text of a line, alone for any lines."""
    return re.fullmatch("".join(map(_pattern, _lines(shown))), "".join(_lines(said))) is not None


def _lines(text: str) -> list[str]:
    return [f"{line.rstrip()}\n" for line in text.strip("\n").splitlines()]


def _pattern(line: str) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    return ".*?".join(map(re.escape, line.split("…")))
