"""Refuses to change a variable while jax traces.

Under ``jit`` nothing is computed while the function is traced: a change would put tracers into the
variable once, and later calls would not repeat it. ``grad`` and ``vmap`` compute at once, but they would neither
differentiate nor map the change.
"""

from __future__ import annotations

from typing import Any

from reshard.errors import VariableError


def refuse_tracing(name: str, method: str, *arrays: Any) -> None:
    """Raises VariableError if jax traces the caller, or ``arrays`` contain a tracer."""
    from jax.tree_util import tree_leaves

    if any(map(is_traced, tree_leaves(arrays))) or being_traced():
        raise VariableError(
            f"{method} would change {name!r} while jax traces a function (jit, grad, vmap, scan…); "
            f"return the new values from the function and assign them outside it"
        )


def is_traced(array: Any) -> bool:
    """Whether it is a tracer of jax, not an array with values."""
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
