"""Refuses to change a variable while jax traces.

Under tracing nothing is computed yet: a change would happen once, while the function is traced, put
tracers that soon die into the variable, and be missing from every later call.
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
    # Within a function that is being staged, even an operation on constants gives a tracer.
    import jax.numpy as jnp
    import numpy as np

    return is_traced(jnp.logical_not(np.False_))
