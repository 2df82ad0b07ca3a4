"""Live arrays in pieces."""

from __future__ import annotations

from reshard.variables.create import create
from reshard.variables.lazy import materialize, named_variables
from reshard.variables.variable import Variable

__all__ = ["Variable", "create", "materialize", "named_variables"]
