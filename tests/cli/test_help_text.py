"""The docstring of a command is its help: each entry is an option's, and each option has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from reshard.cli.app import make_app
from reshard.cli.commands.jobs import NEWEST, State, list_jobs
from reshard.cli.groups import SHARED, shown_fields
from reshard.cli.help_text import Entry, page_of


def written() -> None:
    r"""Write a thing.

    The second paragraph
    has two lines, and \[no style].

    Options:
        [A] B: The first: its
            second line.
        --out DIR: Write into this folder.

    Making it:
        --fast: Now.

    Examples:
        $ reshard write a[0] \
          --out b
    """


def each_command(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from each_command(command, f"{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = dict(each_command(get_command(make_app())))


def test_a_docstring_is_read_as_a_page() -> None:
    page = page_of(written)
    assert page.prose == "Write a thing.\n\nThe second paragraph has two lines, and \\\\[no style]."
    assert page.arguments == (Entry("[A] B", "The first: its second line."),)
    assert page.options == {
        "--out": Entry("DIR", "Write into this folder."),
        "--fast": Entry(None, "Now.", "Making it"),
    }
    assert page.examples == "\b\nExamples:\n  $ reshard write a\\[0] \\\n    --out b"


def test_a_function_without_a_docstring_has_an_empty_page() -> None:
    assert page_of(lambda: None).prose == ""  # python -OO


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_help(name: str) -> None:
    shown = [one for one in COMMANDS[name].params if one.name != "help"]
    assert [one.name for one in shown if not one.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_entry_is_of_an_option(name: str) -> None:
    command = COMMANDS[name]
    page = page_of(command.callback.__wrapped__)
    names = {option for one in command.params for option in one.opts}
    assert [option for option in page.options if option not in names] == []
    arguments = {one.metavar for one in command.params if isinstance(one, TyperArgument)}
    assert {entry.metavar for entry in page.arguments} <= arguments


@pytest.mark.parametrize("group", SHARED)
def test_every_field_of_a_group_has_its_help(group: type) -> None:
    own = group.__annotations__
    shown = {each.name: each.annotation.__metadata__[0].help for each in shown_fields(group)}
    assert [name for name in own if not shown[name]] == []


def test_the_help_of_jobs_list_says_what_it_does() -> None:
    options = page_of(list_jobs).options
    assert str(options["--all"].help).endswith(f"the newest {NEWEST}.")
    assert options["--state"].metavar == "|".join(State)
