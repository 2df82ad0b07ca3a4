"""The maps that come with this package: files of ``reshard/recipes``, asked for by name.

Each says in its ``about`` from which version of the model code it was made. A file is a map, and behind it the choices by which
other maps of its family are made: each choice has names, and each name its replacements in the text::

    variants:
    - tied:                                     # NAME-tied
      - [not tied, tied]
    - unstacked:                                # NAME-unstacked, and NAME-tied-unstacked
      - ['shape: l ', 'shape: ']
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from importlib.resources import files

from reshard.maps.read_map import parse_map
from reshard.maps.rule import MapFile

_SUFFIX = ".yaml"
_VARIANTS = "\nvariants:\n"


def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, sorted."""
    return tuple(sorted(_texts()))


@lru_cache(maxsize=1)
def _texts() -> Mapping[str, str]:
    """The text of each recipe, by name."""
    found: dict[str, str] = {}
    for file in files("reshard").joinpath("recipes").iterdir():
        if file.name.endswith(_SUFFIX):
            text, _, choices = file.read_text("utf-8").partition(_VARIANTS)
            found |= _variants(file.name.removesuffix(_SUFFIX), f"{text}\n", choices)
    return found


def _variants(name: str, text: str, choices: str) -> dict[str, str]:
    """The map of a file, and those that its choices make of it, by name."""
    from reshard.layout.layout_text import parse_yaml

    made = {name: text}
    for choice in parse_yaml(choices, name).data or ():
        made |= {
            f"{before}-{variant}": reduce(lambda done, change: done.replace(*change), changes, text)
            for before, text in made.items()
            for variant, changes in choice.items()
        }
    return made


def recipe_text(name: str) -> str:
    """The text of a recipe, which is a map file. KeyError for a name that none has."""
    return _texts()[name]


def recipe(name: str) -> MapFile:
    """The map of a recipe. KeyError for a name that none has."""
    return parse_map(recipe_text(name), f"recipe {name}")
