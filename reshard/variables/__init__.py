"""Variables whose values are made and kept in shards."""

from __future__ import annotations

from reshard.variables.lazy.create import create, materialize, named_variables
from reshard.variables.lazy.variable import Variable

__all__ = ["Variable", "create", "materialize", "named_variables"]
