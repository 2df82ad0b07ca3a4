"""A parameter of a group's type stands for the options of the group."""

from __future__ import annotations

from inspect import signature

from reshard.cli.groups import Chosen, Output, spread
from reshard.cli.options import Source


def shown(src: Source, *, chosen: Chosen, depth: int = 2, output: Output) -> None:
    """A command with two groups, which tells what it got."""
    seen.append((src, chosen, depth, output))


seen: list[tuple[str, Chosen, int, Output]] = []


def test_a_command_gets_its_groups_of_the_options_in_their_place() -> None:
    command = spread(shown)
    parameters = signature(command).parameters
    assert [*parameters] == [
        "src", "step", "item", "unlisted", "depth", "show_all", "quiet", "as_json",
    ]  # fmt: skip
    assert parameters["unlisted"].default == "leave"
    given = {name: each.default for name, each in parameters.items()}
    command(**{**given, "src": "run", "step": "latest", "quiet": True})
    assert seen == [("run", Chosen(step="latest"), 2, Output(quiet=True))]


def test_a_request_has_the_options_that_are_given() -> None:
    assert Chosen().there() == {}
    given = Chosen(step="5", item="model", unlisted="include").there()
    assert given == {"step": 5, "item": "model", "unlisted": "include"}
