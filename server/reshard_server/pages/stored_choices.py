"""The stored layouts and maps that a form offers, in their newest versions, and the recipes."""

from __future__ import annotations

from reshard.maps.recipes import recipe_names
from reshard_server.db.stored import names
from reshard_server.db.stored.kinds import LAYOUT, MAP, StoredKind
from reshard_server.services import Services

MOST_STORED = 200
"""Limit of the names of one kind in a form; a request to the API may name any."""

Choices = list[tuple[str, str]]
"""Values and their texts."""


def stored_choices(serving: Services) -> tuple[Choices, Choices]:
    """Layouts, and maps with recipes behind them."""
    recipes = [(name, f"{name} (recipe)") for name in recipe_names()]
    return _choices(serving, LAYOUT), [*_choices(serving, MAP), *recipes]


def _choices(serving: Services, kind: StoredKind) -> Choices:
    found = names.newest(serving.database, kind, MOST_STORED).versions
    return [(version.name, version.name) for version in found]
