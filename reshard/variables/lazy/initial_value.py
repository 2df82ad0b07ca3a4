"""InitialValue: the shape and dtype of a variable, and its value, computed in shards with exactly the bits of unsharded eager jax.

One program under ``jax.jit`` could change last bits: XLA folds constants of neighbouring operations
together and fuses a multiplication and an addition into one rounding. So the function is traced
and its operations run one after another, each compiled alone, as in eager jax, but with sharded
results. Reshapes and similar operations do not round. Each is compiled together with the operation whose result it
takes, so the value between them is never stored.

Only values that are still needed are kept: the results so far, and a shard or two of the value that is
being computed.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.distribute import distribute_tensor

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding


_MOST_ELEMENTS = (1 << 63) - 1


class InitialValue(Struct, frozen=True):
    """Exactly one of two is set: ``call`` computes the whole value, ``array`` is the value."""

    shape: tuple[int, ...]
    dtype: Any
    call: Callable[[], Any] | None = None
    array: Any = None

    def whole(self, path: str) -> jax.Array:
        """The value on the default device, computed eagerly."""
        import jax.numpy as jnp

        if self.call is None and _is_jax(self.array):
            return value_in_dtype(jnp.array(self.array), self.dtype)
        if self.call is None:
            return jnp.array(_copied(self.array, self.dtype, path))
        with _naming(path):
            made = self.call()
        self._check(made, path)
        return jnp.asarray(made)

    def sharded(self, sharding: NamedSharding, path: str, compiled: Compiled) -> jax.Array:
        """The same value in shards; each device computes or receives only its own."""
        import jax

        if self.call is not None:
            with _naming(path), values_unknown():
                made = jax.eval_shape(self.call)
            self._check(made, path)
            return compute_in_steps(self.call, lambda _: [sharding], compiled)[1][0]
        if _is_jax(self.array):
            placed = distribute_tensor(value_in_dtype(self.array, self.dtype), sharding)
            return placed.copy() if placed is self.array else placed
        return jax.make_array_from_callback(
            self.shape, sharding, lambda index: _copied(self.array[index], self.dtype, path)
        )

    def _check(self, made: Any, path: str) -> None:
        shape, dtype = getattr(made, "shape", None), getattr(made, "dtype", None)
        if (shape, dtype) != (self.shape, self.dtype):
            has = "no array" if shape is None else f"shape {list(shape)} and dtype {dtype}"
            raise VariableError(
                f"the initializer of {path!r} must return shape {list(self.shape)} and dtype {self.dtype}, "
                f"but returned {has}; correct it, or the shape and dtype of the variable"
            )


def initial_value(source: Any, shape: Any, dtype: Any, key: Any) -> InitialValue:
    """Checks the arguments of a variable; ``source`` is an initializer or an array."""
    if not callable(source):
        return _from_array(source, shape, dtype, key)
    if shape is None:
        raise VariableTypeError(
            "a variable with an initializer needs its shape too, such as Variable(jnp.zeros, (8, 4))"
        )
    sizes, kind = _sizes(shape), _dtype(dtype, float)
    if key is not None and not hasattr(key, "dtype"):
        raise VariableTypeError(
            f"a variable's key must be a jax random key such as jax.random.key(0), not {key!r:.80}"
        )
    arguments = (sizes, kind) if key is None else (key, sizes, kind)
    return InitialValue(sizes, kind, call=lambda: source(*arguments))


def _from_array(source: Any, shape: Any, dtype: Any, key: Any) -> InitialValue:
    if key is not None:
        raise VariableTypeError(
            "a variable with a given value takes no key; leave the key out, or give an initializer"
        )
    array = source if _is_sliceable(source) else _numbers(source)
    if array is None or not is_numeric(array.dtype):
        raise VariableTypeError(
            f"a variable's value must be numbers or an initializer, not {type(source).__name__}: {source!r:.80}"
        )
    if shape is not None and _sizes(shape) != tuple(array.shape):
        raise VariableError(
            f"a variable of shape {list(_sizes(shape))} was given a value of shape {list(array.shape)}"
        )
    return InitialValue(tuple(array.shape), _dtype(dtype, array.dtype), array=array)


def _is_jax(array: Any) -> bool:
    import jax

    return isinstance(array, jax.Array)


def _copied(part: Any, dtype: Any, path: str) -> np.ndarray[Any, Any]:
    """The part in ``dtype``; VariableError for whole numbers that do not fit into it."""
    import jax.numpy as jnp
    import numpy as np

    given = np.asarray(part)
    made = given.astype(dtype)
    whole = all(jnp.issubdtype(kind, jnp.integer) for kind in (given.dtype, dtype))
    if whole and not np.array_equal(made, given):
        raise VariableError(
            f"the value of {path!r} has numbers between {given.min()} and {given.max()}, which {dtype} cannot "
            f"hold; give a wider dtype (64 bits need jax_enable_x64)"
        )
    return made


def _numbers(source: Any) -> Any:
    import numpy as np

    try:
        return np.asarray(source)
    except ValueError:  # a nested list whose rows differ in length
        return None


def is_numeric(dtype: Any) -> bool:
    """True if jax has arrays of the dtype: numbers, bool, and random keys."""
    import jax
    import jax.numpy as jnp

    kinds = (jnp.number, jnp.bool_, jax.dtypes.extended)
    return any(jnp.issubdtype(dtype, kind) for kind in kinds)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Adds the variable's path to any exception that its initializer raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the initializer of the variable {path!r}")
        raise


def value_in_dtype(array: jax.Array, dtype: Any) -> jax.Array:
    """The array in ``dtype``; VariableTypeError between random keys and numbers."""
    import jax
    import jax.numpy as jnp

    if array.dtype == dtype:
        return array
    if any(jnp.issubdtype(kind, jax.dtypes.extended) for kind in (array.dtype, dtype)):
        raise VariableTypeError(f"an array of dtype {array.dtype} cannot become one of {dtype}")
    return array.astype(dtype)


def _is_sliceable(source: Any) -> bool:
    """True for an array, and for a dataset in a file whose parts are read when a device needs them."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__"))


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise VariableTypeError(
            f"a variable's shape must be whole numbers of at least 0, not {shape!r}"
        )
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise VariableTypeError(
            f"a variable may have at most {_MOST_ELEMENTS} elements, but its shape is {shape!r}"
        )
    return sizes


def _dtype(asked: Any, default: Any) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    found = default if asked is None else asked
    try:
        if jnp.issubdtype(found, jax.dtypes.extended):
            return found
        wide = np.dtype(found)
    except TypeError:
        raise VariableTypeError(f"{asked!r} is not a dtype") from None
    if not is_numeric(wide):
        raise VariableTypeError(f"{wide} is not a dtype of numbers, which a variable needs")
    kept = np.dtype(jax.dtypes.canonicalize_dtype(wide))
    if asked is not None and kept != wide:
        raise VariableTypeError(
            f"jax would silently narrow the dtype {wide} to {kept}; give {kept}, or enable jax_enable_x64"
        )
    return kept


Compiled = dict[Any, Callable[..., Any]]
"""Compiled steps, by their program and shardings."""

MOVES = frozenset({"reshape", "transpose", "squeeze", "expand_dims", "rev"})
"""Operations that only move elements."""


def compute_in_steps(
    function: Callable[[], Any],
    shardings_of: Callable[[Any], Sequence[NamedSharding]],
    compiled: Compiled | None = None,
) -> tuple[Any, list[jax.Array]]:
    """The result of ``function()`` as a tree of ShapeDtypeStructs, and its leaves as sharded arrays.

    Args:
        function: runs once, under tracing.
        shardings_of: takes the tree of ShapeDtypeStructs, gives one sharding per leaf.
        compiled: steps that were compiled for other values; new ones are added.

    Raises VariableError within ``jax.set_mesh`` with axes of type Explicit, and if the function reads values that are
    not known under tracing.
    """
    import jax

    trace: Any = jax.make_jaxpr(function, return_shape=True)
    _check_context()
    with values_unknown():
        closed, shapes = trace()
    shardings = list(shardings_of(shapes))
    known = {} if compiled is None else compiled
    made = _run(closed, [_automatic(sharding) for sharding in shardings], known)
    return shapes, [_typed(array, to) for array, to in zip(made, shardings, strict=True)]


@contextmanager
def values_unknown() -> Iterator[None]:
    """Raises VariableError if a traced function looks at values that it computes."""
    import jax

    try:
        yield
    except jax.errors.JAXTypeError as error:
        raise VariableError(
            "a function that makes variables in a layout map's scope is traced: it may compute arrays, but not "
            f"look at their values with if, float or numpy; use jax.numpy, or compute them before. {error}"
        ) from error


def _run(closed: Any, shardings: list[NamedSharding], compiled: Compiled) -> list[jax.Array]:
    import jax
    from jax.extend.core import Literal

    jaxpr, values = _numbers_outside(closed)
    values = {variable: _at_hand(value, shardings) for variable, value in values.items()}
    steps = _steps(jaxpr)
    wanted = _wanted_shardings(jaxpr, steps, shardings)
    uses = _uses(steps, jaxpr)
    for step in steps:
        run = _compiled(step, tuple(wanted.get(v) for v in step.outvars), compiled)
        made = run(*(values[v] for v in step.invars))
        values.update((v, a) for v, a in zip(step.outvars, made, strict=True) if uses[v])
        for variable in step.invars:
            uses[variable] -= 1
            if not uses[variable]:
                del values[variable]
        jax.block_until_ready(made)  # otherwise temporary values of many steps could exist at once
    return [
        jax.device_put(v.val if isinstance(v, Literal) else values[v], to)
        for v, to in zip(jaxpr.outvars, shardings, strict=True)
    ]


def _uses(parts: Sequence[Any], jaxpr: Any) -> Counter[Any]:
    """The number of uses of each variable: as an input of a part (an equation or a step), or as a result of the whole."""
    uses = Counter(v for part in parts for v in part.invars)
    uses.update(_variables(jaxpr.outvars))
    return uses


def _numbers_outside(closed: Any) -> tuple[Any, dict[Any, Any]]:
    """The program with its literal numbers turned into inputs, and the values of all its inputs.

    Eager jax passes them as inputs too. A compiler that knows a divisor multiplies by its reciprocal instead.
    """
    from jax.extend.core import Literal, Var

    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def outside(atom: Any) -> Any:
        if not isinstance(atom, Literal):
            return atom
        variable = Var(atom.aval)
        values[variable] = atom.val
        return variable

    needed = _needed(closed.jaxpr)
    equations = [e.replace(invars=list(map(outside, e.invars))) for e in needed]
    return closed.jaxpr.replace(eqns=equations), values


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that a result depends on."""
    wanted = set(_variables(jaxpr.outvars))
    kept = []
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            wanted.update(_variables(equation.invars))
            kept.append(equation)
    return kept[::-1]


def _steps(jaxpr: Any) -> list[Any]:
    """One step per equation; a move joins the step of its input if nothing else uses that input."""
    uses = _uses(jaxpr.eqns, jaxpr)
    groups: list[list[Any]] = []
    maker: dict[Any, list[Any]] = {}
    for equation in jaxpr.eqns:
        taken = equation.invars[0] if equation.primitive.name in MOVES else None
        group = maker.get(taken) if uses[taken] == 1 else None
        if group is None:
            groups.append(group := [])
        group.append(equation)
        maker.update((v, group) for v in equation.outvars)
    return [_step(jaxpr, group) for group in groups]


def _step(jaxpr: Any, group: list[Any]) -> Any:
    """A program of these equations only: its inputs come from other steps, its outputs go to them."""
    taken = [v for equation in group for v in equation.invars]
    made = [v for equation in group for v in equation.outvars]
    inner = set(made) & set(taken)
    return jaxpr.replace(
        constvars=[],
        invars=[v for v in dict.fromkeys(taken) if v not in inner],
        outvars=[v for v in made if v not in inner and type(v).__name__ != "DropVar"],
        eqns=group,
        effects=set().union(*(equation.effects for equation in group)),
    )


def _variables(atoms: Sequence[Any]) -> list[Any]:
    from jax.extend.core import Literal

    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _wanted_shardings(
    jaxpr: Any, steps: list[Any], shardings: list[NamedSharding]
) -> dict[Any, NamedSharding]:
    """Sharding of each value: that of the result computed from it, if the shapes are equal."""
    wanted: dict[Any, NamedSharding] = {}
    for variable, sharding in zip(jaxpr.outvars, shardings, strict=True):
        for known in _variables([variable]):
            wanted.setdefault(known, sharding)
    for step in reversed(steps):
        for made in step.outvars:
            for taken in step.invars if made in wanted else ():
                if taken.aval.shape == made.aval.shape:
                    wanted.setdefault(taken, wanted[made])
    return wanted


def _compiled(step: Any, shardings: tuple[Any, ...], known: Compiled) -> Callable[..., Any]:
    """The step as a compiled function; equal steps, such as those of equal layers, share one."""
    import jax
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    def compiled() -> Callable[..., Any]:
        function: Any = jaxpr_as_fun(ClosedJaxpr(step, ()))
        jitted: Callable[..., Any] = jax.jit(function, out_shardings=list(shardings))
        return jitted

    key = _key(step, shardings)
    try:
        if key not in known:
            known[key] = compiled()
    except TypeError:  # parameters that cannot be hashed
        return compiled()
    return known[key]


def _key(step: Any, shardings: tuple[Any, ...]) -> tuple[Any, ...]:
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> tuple[str, int]:
        return str(variable.aval), numbers.setdefault(variable, len(numbers))

    equations = tuple(
        (
            equation.primitive,
            tuple(map(name, equation.invars)),
            tuple(map(name, equation.outvars)),
            tuple(sorted(equation.params.items(), key=lambda item: item[0])),
        )
        for equation in step.eqns
    )
    return equations, shardings


def _at_hand(const: Any, shardings: list[NamedSharding]) -> Any:
    """A constant of the program, such as a random key; one committed to other devices is copied to these."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    bound = isinstance(const, jax.Array) and const.committed
    if not bound or not shardings or const.sharding.device_set == shardings[0].device_set:
        return const
    everywhere: Any = PartitionSpec
    return jax.device_put(const, NamedSharding(shardings[0].mesh, everywhere()))


def _check_context() -> None:
    import jax
    from jax.sharding import AxisType

    current: Any = jax.sharding.get_abstract_mesh()
    if not current.empty and AxisType.Explicit in current.axis_types:
        raise VariableError(
            f"variables cannot get values while jax.set_mesh is in force with axes of type Explicit "
            f"({', '.join(current.axis_names)}): initializers say nothing about shardings; call materialize or "
            f"create outside of it, the layout map may have such a mesh"
        )


def _automatic(sharding: NamedSharding) -> NamedSharding:
    """The same sharding over axes of type Auto: a traced program has no types for Explicit axes."""
    from jax.sharding import AxisType, Mesh, NamedSharding

    mesh: Any = sharding.mesh
    axes = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    return NamedSharding(axes, sharding.spec)


def _typed(array: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same buffers with the axis types of ``sharding``."""
    import jax

    if array.sharding == sharding:
        return array
    pieces = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        array.shape, sharding, pieces, dtype=array.dtype
    )
