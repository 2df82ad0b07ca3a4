"""Refuses to change a variable while jax traces.

Under ``jit`` nothing is computed yet: a change would happen once, while the function is traced, put
tracers that soon die into the variable, and be missing from every later call. ``grad`` and ``vmap``
compute at once, but a change would be no part of what they differentiate or map.
"""

from __future__ import annotations

from typing import Any

from reshard.errors import VariableError


def refuse_tracing(name: str, method: str, *arrays: Any) -> None:
    """Raise VariableError where jax traces the caller, or where ``arrays`` hold a tracer."""
    from jax.tree_util import tree_leaves

    if any(map(is_traced, tree_leaves(arrays))) or being_traced():
        raise VariableError(
            f"{method} would change {name!r} while jax traces a function (jit, grad, vmap, scan…); "
            f"return the new values from the function and assign them outside it"
        )


def is_traced(array: Any) -> bool:
    """Whether it is one of jax's stand-ins for an array, not an array with values."""
    import jax

    return isinstance(array, jax.core.Tracer)


def being_traced() -> bool:
    """Whether jax traces the caller."""
    from jax.core import eval_context
    from jax.extend.core import get_opaque_trace_state

    with eval_context():
        eager = get_opaque_trace_state(convention="flax")
    found: bool = get_opaque_trace_state(convention="flax") != eager
    return found
