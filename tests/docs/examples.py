"""The examples of every command's help, and the commands of docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer

from reshard.cli.app import make_app

ROOT = Path(__file__).parents[2]


def help_examples(*names: str) -> dict[str, list[str]]:
    """The lines to type of each command, those that end in a backslash joined; ``names`` lead to a group of commands."""
    group: object = typer.main.get_command(make_app())
    for name in names:
        assert isinstance(group, typer.core.TyperGroup)
        group = group.commands[name]
    assert isinstance(group, typer.core.TyperGroup)
    shown = {
        name: (command.epilog or "").replace("\\[", "[") for name, command in group.commands.items()
    }
    return {name: list(typed(text)) for name, text in shown.items()}


def typed(text: str) -> Iterator[str]:
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        if line.strip().startswith("$ "):
            yield line.strip()[2:]


def docs_examples() -> dict[str, list[str]]:
    """The commands of reshard in the console blocks of each page of reference and explanation, in order."""
    found: dict[str, list[str]] = {}
    for page in sorted([*ROOT.glob("docs/reference/*.md"), *ROOT.glob("docs/explanation/*.md")]):
        blocks = re.findall(
            r"^```console\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        lines = [line for block in blocks for line in typed(block) if line.startswith("reshard ")]
        if lines:
            found[page.name] = lines
    return found


HELP = help_examples()
JOBS = help_examples("jobs")
DOCS = docs_examples()
