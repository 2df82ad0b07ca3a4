"""The maps that come with this package: files of ``reshard/recipes``, asked for by name.

Each says in its ``about`` from which version of the model code it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from reshard.maps.read_map import parse_map
from reshard.maps.rule import MapFile

_SUFFIX = ".yaml"


def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, sorted."""
    return tuple(sorted(_names()))


def _names() -> Iterator[str]:
    for file in files("reshard").joinpath("recipes").iterdir():
        if file.name.endswith(_SUFFIX):
            yield file.name.removesuffix(_SUFFIX)


def recipe_text(name: str) -> str:
    """The text of a recipe, which is a map file. KeyError for a name that none has."""
    if name not in recipe_names():
        raise KeyError(name)
    return files("reshard").joinpath("recipes", f"{name}{_SUFFIX}").read_text("utf-8")


def recipe(name: str) -> MapFile:
    """The map of a recipe. KeyError for a name that none has."""
    return parse_map(recipe_text(name), f"recipe {name}")
