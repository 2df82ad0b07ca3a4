"""The options of a conversion: names, texts and checks, each declared once."""

from __future__ import annotations

from reshard.conversion.declared_options import OPTIONS
from reshard.conversion.options import LIBRARY_NAMES
from reshard.deltas.declared_options import OPTIONS as OF_DELTAS
from reshard.maps.read_map import recipe_names
from reshard.options import CHANGES, OUTPUT, Option

__all__ = ["CHANGES", "LIBRARY_NAMES", "OF_DELTAS", "OPTIONS", "OUTPUT", "Option", "recipe_names"]
