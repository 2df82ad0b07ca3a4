"""Variable: one array of a plain Python object; lazy if it is made in a layout map's scope."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableTypeError
from reshard.layout.layout_map import LayoutMap, current_layout_map
from reshard.layout.tensor_layout import TensorLayout
from reshard.variables.lazy.initial_value import (
    Compiled,
    InitialValue,
    initial_value,
    value_in_dtype,
)
from reshard.variables.lazy.object_paths import layout_at, sharding_of
from reshard.variables.sharded.in_jax import is_traced

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jax.sharding import Sharding

Initializer = Any
"""Called as ``initializer(shape, dtype)``, or as ``initializer(key, shape, dtype)`` with a key."""


class Variable:
    """One array of a model, which can be assigned; lazy if it is made in a layout map's scope.

    Outside of a scope it is made at once, on jax's default device. Inside, it has a shape and a dtype
    but no value until ``materialize(root)`` computes it in shards.

    Args:
        value_or_initializer: an array, or an initializer ``(shape, dtype)`` such as ``jnp.zeros``, or with
            ``key`` one of ``jax.nn.initializers``, called as ``(key, shape, dtype)``.
        shape: needed with an initializer.
        dtype: the default is that of the given array, float32 for an initializer.
        key: for initializers that draw random numbers.
        name: for messages.

    Raises VariableTypeError or VariableError (a ValueError) if these contradict each other.

    >>> import jax.numpy as jnp
    >>> Variable(jnp.ones, (2, 3)).value.sum().item()
    6.0
    """

    __slots__ = ("__weakref__", "_initial", "_layout", "_layout_map", "_value", "name")

    def __init__(
        self,
        value_or_initializer: Initializer,
        shape: Any = None,
        dtype: Any = None,
        *,
        key: Any = None,
        name: str | None = None,
    ) -> None:
        self.name = name
        self._layout_map = current_layout_map()
        self._initial: InitialValue | None
        self._initial = initial_value(value_or_initializer, shape, dtype, key)
        self._value: jax.Array | None = None
        self._layout: TensorLayout | None = None
        if self._layout_map is None:
            self._hold(self._initial.whole(name or "a variable"))
        elif is_traced(self._initial.array):
            raise VariableError(
                f"{self} cannot keep a traced value in a layout map's scope: the value would outlive the jax "
                f"transformation; make it outside of jit, or give an initializer"
            )
        else:
            self._layout_map.scope_names.wait_for(self, attrgetter("is_lazy"))

    @property
    def is_lazy(self) -> bool:
        """True if it was made in a scope and has no value yet."""
        return self._value is None

    @property
    def layout_map(self) -> LayoutMap | None:
        """The map in whose scope it was made; None outside of every scope."""
        return self._layout_map

    @property
    def layout(self) -> TensorLayout | None:
        """The layout that the map gave it; None while lazy, and for a variable made outside of every scope."""
        return self._layout

    @property
    def value(self) -> jax.Array:
        """The array; a VariableError while lazy."""
        if self._value is None:
            raise VariableError(
                f"{self} was made in a layout map's scope and has no value yet; call "
                f"reshard.variables.materialize(root) on the object that contains it before it is read"
            )
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension, known while lazy."""
        return self._value.shape if self._initial is None else self._initial.shape  # type: ignore[union-attr]  # one of the two is there

    @property
    def dtype(self) -> Any:
        """The dtype, known while lazy."""
        return self._value.dtype if self._initial is None else self._initial.dtype  # type: ignore[union-attr]  # one of the two is there

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def sharding(self) -> Sharding:
        """The jax sharding of the value; a VariableError while lazy."""
        return self.value.sharding

    def assign(self, value: Any) -> None:
        """Replaces the value by one of the same shape, keeping dtype and sharding.

        Raises VariableError for another shape, while lazy, and under a jax transformation.
        """
        import jax

        before = self.value
        if is_traced(value):
            raise VariableError(
                f"{self} cannot be assigned a traced value: it would outlive the jax transformation; "
                f"return the value from the function and assign it outside"
            )
        new = _array(self, value)
        if new.shape != before.shape:
            raise VariableError(
                f"{self} cannot be assigned a value of shape {list(new.shape)}; give one of the variable's shape"
            )
        self._value = jax.device_put(value_in_dtype(new, before.dtype), before.sharding)

    def made(self, path: str, compiled: Compiled) -> jax.Array:
        """The value in shards by the layout of ``path``; the variable itself does not change."""
        if self._initial is None or self._layout_map is None:
            raise VariableError(
                f"{self} at {path!r} has its value already; it cannot be made twice"
            )
        return self._initial.sharded(self.sharding_at(path), path, compiled)

    def layout_at(self, path: str) -> TensorLayout:
        """The layout that its scope's map has for ``path``."""
        return layout_at(self._map(path), path, self.ndim, is_rng_state=self._is_key())

    def sharding_at(self, path: str) -> Any:
        """The sharding that its scope's map has for ``path``."""
        return sharding_of(self._map(path), path, self.shape, is_rng_state=self._is_key())

    def _map(self, path: str) -> LayoutMap:
        if self._layout_map is None:
            raise VariableError(
                f"{self} at {path!r} was made outside of every scope; it has no layout map"
            )
        return self._layout_map

    def _is_key(self) -> bool:
        import jax
        import jax.numpy as jnp

        return bool(jnp.issubdtype(self.dtype, jax.dtypes.prng_key))

    def _hold(self, value: jax.Array, layout: TensorLayout | None = None) -> None:
        self._value, self._layout = value, layout
        self._initial = None  # the initializer may hold a large array

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.array(self.value, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        lazy = ", lazy" if self.is_lazy else ""
        return f"Variable{name} (shape {list(self.shape)}, {self.dtype}{lazy})"


def _array(variable: Variable, value: Any) -> jax.Array:
    import jax.numpy as jnp

    try:
        return jnp.asarray(value.value if isinstance(value, Variable) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise VariableTypeError(
            f"{variable} cannot be assigned a {type(value).__name__}: {error}"
        ) from None
