"""Compares what is stored with what is asked for, and collects every difference."""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.errors import MissingPackageError
from reshard.formats.base import Leaf, StoredTensor
from reshard.geometry.dtypes import numpy_dtype
from reshard.layout.cast_rule import kind_of, left_side_for
from reshard.restoring.dtypes import is_lossless
from reshard.restoring.mismatches import Mismatches
from reshard.restoring.target_tree import TargetLeaf
from reshard.variables.sharded.shards import narrowed_by_jax


class Kept(Struct, frozen=True):
    """A leaf of the checkpoint that is to be restored.

    Attributes:
        name: in the restored tree.
        stored: where it is a tensor.
        cast: dtype that a rule asks for.
        saturate: whether that cast makes values beyond the largest finite one that one.
    """

    name: str
    leaf: Leaf
    stored: StoredTensor | None = None
    cast: str | None = None
    saturate: bool = False

    @property
    def text(self) -> str | None:
        """The string, where it is one."""
        return self.leaf.text

    @property
    def value_type(self) -> str:
        """What the saver called the value: ``"scalar"``, ``"None"``, ``"Dict"``, …"""
        return self.leaf.value_type

    @property
    def is_scalar(self) -> bool:
        """Whether it was a number of Python's."""
        return (
            self.stored is not None and self.value_type == "scalar" and not self.stored.spec.shape
        )

    @property
    def is_numpy(self) -> bool:
        """Whether it was a numpy array."""
        return self.stored is not None and self.value_type == "np.ndarray"

    @property
    def has_data(self) -> bool:
        """Whether it would be lost if nothing asked for it; None and empty containers would not."""
        return self.stored is not None or self.text is not None

    @property
    def what(self) -> str:
        if self.stored is not None:
            keys = "PRNG keys with data " if self.stored.is_key else ""
            return f"{keys}{self.stored.spec.dtype} of shape {list(self.stored.spec.shape)}"
        return (
            "a string" if self.text is not None else f"without data ({self.value_type or 'empty'})"
        )

    @property
    def key_implementation(self) -> str | None:
        """The kind of PRNG keys, where it holds keys."""
        found = (self.leaf.meta.get("ext_metadata") or {}).get("random_key_impl")
        return str(found) if self.stored is not None and self.stored.is_key and found else None


def restored_dtype(kept: Kept, asked: TargetLeaf | None) -> str:
    """The dtype that a fitting tensor is restored in."""
    stored = _spec_dtype(kept)
    if kept.cast is not None:
        return kept.cast
    if asked is None or asked.dtype is None or asked.kind == "key":
        return stored
    return asked.dtype


def check_fit(kept: Kept, asked: TargetLeaf, found: Mismatches) -> None:
    """Adds to ``found`` in what a leaf and what is asked for it differ."""
    if asked.kind == "string" or kept.stored is None:
        if (asked.kind == "string") != (kept.text is not None):
            found.add("kind", f"{kept.name} is {kept.what}, but {_wanted(asked)} is asked for")
    elif asked.kind == "scalar":
        _check_scalar(kept, kept.stored, asked, found)
    elif asked.kind == "key":
        _check_key(kept, kept.stored, asked, found)
    else:
        _check_shape(kept, kept.stored.spec.shape, asked, found)
        _check_dtype(kept, asked, found)


def check_for_jax(kept: Kept, asked: TargetLeaf | None, found: Mismatches) -> None:
    """Adds a tensor whose dtype jax would narrow without a word."""
    dtype = restored_dtype(kept, asked)
    narrowed = narrowed_by_jax(numpy_dtype(dtype))
    if narrowed is not None:
        is_free = asked is None and kept.is_numpy
        numpy = "take it out of the layout, so that it stays" if is_free else "restore it as"
        found.add(
            "dtype",
            f"{kept.name} is {dtype}, which jax would narrow to {narrowed}; set jax_enable_x64, {numpy}"
            f" a numpy array, or cast=[({left_side_for(kept.name)!r}, {narrowed!r})]",
        )


def _wanted(asked: TargetLeaf) -> str:
    if asked.kind in ("string", "scalar"):
        return f"a {type(asked.leaf).__name__}"
    return f"{asked.dtype} of shape {list(asked.shape)}"


def _check_shape(kept: Kept, stored: tuple[int, ...], asked: TargetLeaf, found: Mismatches) -> None:
    if stored != asked.shape:
        found.add(
            "shape", f"{kept.name} has shape {list(stored)}, but {list(asked.shape)} is asked for"
        )


def _check_dtype(kept: Kept, asked: TargetLeaf, found: Mismatches) -> None:
    stored, dtype = _spec_dtype(kept), str(asked.dtype)
    if kept.cast is not None and kept.cast != dtype:
        found.add("dtype", f"{kept.name} is cast to {kept.cast}, but {dtype} is asked for")
    elif kept.stored is not None and kept.stored.is_key and dtype != stored:
        found.add("dtype", f"{kept.name} is {kept.what}, but {_wanted(asked)} is asked for")
    elif kept.cast is None and not is_lossless(stored, dtype):
        found.add(
            "dtype",
            f"{kept.name} is {stored}, but {dtype} is asked for; cast=[({left_side_for(kept.name)!r}, {dtype!r})] converts it",
        )


def _check_scalar(kept: Kept, stored: StoredTensor, asked: TargetLeaf, found: Mismatches) -> None:
    kind = kind_of(kept.cast or stored.spec.dtype)
    if math.prod(stored.spec.shape) != 1 or stored.spec.shape or stored.is_key:
        found.add("kind", f"{kept.name} is {kept.what}, but {_wanted(asked)} is asked for")
    elif kind != type(asked.leaf).__name__:
        found.add(
            "dtype",
            f"{kept.name} is {kept.cast or stored.spec.dtype}, but {_wanted(asked)} is asked for",
        )


def _check_key(kept: Kept, stored: StoredTensor, asked: TargetLeaf, found: Mismatches) -> None:
    implementation = kept.key_implementation
    if implementation is None:
        found.add(
            "kind", f"{kept.name} is {kept.what}, but PRNG keys ({asked.dtype}) are asked for"
        )
        return
    shape, dtype = key_type(stored, implementation)
    _check_shape(kept, shape, asked, found)
    if dtype != asked.dtype:
        found.add("dtype", f"{kept.name} holds PRNG keys {dtype}, but {asked.dtype} is asked for")


def require_jax(why: str) -> None:
    """Raises MissingPackageError, with the reason, where jax is not installed."""
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"{why}; install reshard[jax], or leave out what needs it (numpy arrays do not)"
        ) from error


def key_type(stored: StoredTensor, implementation: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the keys that this data makes; as the name says where jax does not know them."""
    require_jax(f"{stored.spec.name!r} holds PRNG keys, which are restored as jax's own")
    import jax

    data = jax.ShapeDtypeStruct(stored.spec.shape, jax.numpy.uint32)
    try:
        keys = jax.eval_shape(lambda d: jax.random.wrap_key_data(d, impl=implementation), data)
    except (ValueError, TypeError):
        return stored.spec.shape, implementation
    return tuple(keys.shape), str(keys.dtype)


def _spec_dtype(kept: Kept) -> str:
    return "" if kept.stored is None else kept.stored.spec.dtype
