"""``reshard recipes``."""

from __future__ import annotations

from typing import Annotated

import typer

from reshard import rules
from reshard.cli.console import print_all, print_json
from reshard.cli.options import Json, examples

EXAMPLES = examples(
    "reshard recipes",
    "reshard recipes maxtext-llama3.1 > llama.yaml",
    "reshard recipes --json | jq '.recipes[].name'",
)


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The recipe whose text is written.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the maps that come with reshard, or write one of them.

    convert, plan and verify take the name of a recipe for --map. To change one, write it to a file.
    """
    known = rules.recipes()
    if name is not None:
        typer.echo(rules.recipe(name), nl=False)
        return
    if as_json:
        listed = [{"name": each, "about": about} for each, about in known.items()]
        print_json({"command": "recipes", "recipes": listed})
        return
    from reshard.cli.tables import table

    print_all([table("", ("recipe", "what it is for"), known.items())])
