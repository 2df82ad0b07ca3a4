"""Compares a stored leaf with the leaf of ``like`` that it is restored onto.

A tensor is restored in its stored dtype, unless ``like`` has a dtype that keeps every value
(bfloat16 → float32, int8 → int32). A cast that can lose information, and every change of kind (int → float), needs a
``cast`` rule.

Collects every mismatch between a checkpoint and ``like``, and raises one error.

If all names are missing but exist under another prefix (an item, or ``params/``), a hint says how to fit them. For tensors whose
dtype does not fit, a line names the cast rule that converts them: one line for all that one rule converts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from reshard.errors import MissingPackageError, TreeError
from reshard.formats.contents import Leaf, StoredTensor
from reshard.geometry.dtypes import narrowed_by_jax, numpy_dtype
from reshard.layout.changes import kind_of, left_side_for
from reshard.layout.prefixes import prefixes_above, surplus_prefix, with_folders
from reshard.restoring.target_tree import TargetLeaf
from reshard.version import how_to_install

Section = Literal["missing", "unexpected", "unplaced", "idle", "kind", "shape", "dtype"]

SHOWN = 20
"""Lines per section; the rest is counted."""

SHOWN_WITH_HINT = 3
"""Lines per section after a hint, which explains all of them."""

_TITLES: dict[Section, str] = {
    "missing": "asked for, but not in the checkpoint",
    "unexpected": "in the checkpoint, but not asked for",
    "unplaced": "without a sharding in the tree of layouts",
    "idle": "named by the tree of layouts, but not restored",
    "kind": "of another kind",
    "shape": "of another shape",
    "dtype": "of another dtype",
}
_REMEDIES: dict[Section, str] = {
    "missing": "rename= gives stored leaves other names, missing='keep' leaves these as they are",
    "unexpected": "unexpected='ignore' leaves them out, and so does drop=",
    "unplaced": "None leaves a tensor on jax's default device",
}


class Mismatches:
    """Mismatches by section; ``refuse`` raises one TreeError for all of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._hints: list[str] = []
        self._found: dict[Section, list[str]] = {section: [] for section in _TITLES}
        self._counts = dict.fromkeys(_TITLES, 0)

    def add(self, section: Section, line: str, count: int = 1) -> None:
        """Adds a line about ``count`` leaves."""
        self._found[section].append(line)
        self._counts[section] += count

    def hint(self, text: str) -> None:
        """Adds a likely cause of all mismatches, which comes first and shortens the lists; "" adds nothing."""
        self._hints += [text] if text else []

    def refuse(self) -> None:
        """Raises TreeError if there is any mismatch."""
        sections = [self._section(s) for s in _TITLES if self._found[s]]
        if sections:
            raise TreeError(
                f"the request does not fit the checkpoint {self._where}:\n"
                + "\n".join([*(f"  {hint}" for hint in self._hints), *sections])
            )

    def _section(self, section: Section) -> str:
        found = self._found[section]
        shown = SHOWN_WITH_HINT if self._hints else SHOWN
        lines = [f"    {line}" for line in found[:shown]]
        if len(found) > shown:
            lines.append(f"    … and {len(found) - shown} more")
        remedy = f" ({_REMEDIES[section]})" if section in _REMEDIES else ""
        return "\n".join([f"  {_TITLES[section]}: {self._counts[section]}{remedy}", *lines])


def target_hint(names: Collection[str], stored: Sequence[str], items: Collection[str]) -> str:
    """A hint on how to restore a target whose names are all missing; "" if no prefix makes them fit.

    Args:
        names: those of the target.
        items: the checkpoint's items whose names are the first key of their leaves' names.
    """
    above = prefixes_above(names, stored)
    if above:
        hows = " or ".join(_how(prefix, stored, items) for prefix in above)
        return f"{_every(names)} there below {' and below '.join(map(repr, above))}: {hows}"
    surplus = surplus_prefix(names, stored)
    if surplus is None:
        return ""
    return (
        f"{_every(names)} there without {surplus!r}: rename=[('^', {surplus!r})] puts it before the names of the "
        "checkpoint"
    )


def layout_hint(keys: Collection[str], stored: Sequence[str]) -> str:
    """A hint on how to change a tree of layouts that has no key of the checkpoint; "" if no prefix makes it fit."""
    there = with_folders(stored)
    above = prefixes_above(keys, there)
    if above:
        return f"the tree of layouts begins below {above[0]!r} of the checkpoint; put it below that key"
    surplus = surplus_prefix(keys, there)
    if surplus is None:
        return ""
    return f"the checkpoint's names begin below {surplus!r} of the tree of layouts; give the part below that key"


def _every(names: Collection[str]) -> str:
    return f"every one of the {len(names)} names is" if len(names) > 1 else "the name is"


def _how(prefix: str, stored: Sequence[str], items: Collection[str]) -> str:
    """The arguments that remove a prefix."""
    first, _, rest = prefix.partition("/")
    if first in items:
        return f"pass item={first!r}" + (f" and {_rename(rest)}" if rest else "")
    others = [name for name in stored if not name.startswith(prefix)]
    select = f"select=['^{re.escape(prefix)}'] and " if others else ""
    return f"pass {select}{_rename(prefix)}"


def _rename(prefix: str) -> str:
    return f"rename=[('^{re.escape(prefix)}', '')]"


NAMED = 3
"""Tensors that a line names; the rest is counted."""


_ONE = {"them": "it", "stay": "it stays", "a": "a ", "s": ""}
_SEVERAL = {"them": "them", "stay": "they stay", "a": "", "s": "s"}


class WantedDtype(Struct, frozen=True):
    """The dtype that a tensor must get.

    Attributes:
        narrowed: the way to avoid a narrowing by jax, with the keys of ``_ONE``; "" where the caller asks for ``wanted``.
        needs_cast: true if only a cast rule converts it.
    """

    name: str
    stored: str
    wanted: str
    narrowed: str = ""
    needs_cast: bool = False


class _Group(Struct, frozen=True):
    """Tensors that one rule converts; "" for a single tensor, which is named."""

    rule: str
    members: list[WantedDtype]


def cast_lines(tensors: Sequence[WantedDtype]) -> Iterator[tuple[str, int]]:
    """Lines about the tensors that need a cast, each with the number of these tensors.

    ``tensors`` are all that are restored and that no rule casts: a rule is advised only if it is right for all of them.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    for tensor in tensors:
        if tensor.needs_cast:
            rule = _rule(tensor, tensors)
            key = (rule, tensor.wanted, tensor.narrowed, "" if rule else tensor.name)
            groups.setdefault(key, _Group(rule, [])).members.append(tensor)
    for group in groups.values():
        yield _line(group), len(group.members)


def _rule(tensor: WantedDtype, tensors: Sequence[WantedDtype]) -> str:
    """The left side of a rule by dtype that gives every tensor its wanted dtype; "" if there is none."""
    kind = kind_of(tensor.stored)
    if kind_of(tensor.wanted) != kind:
        return ""  # only a rule with the tensor's name changes the kind
    of_kind = {t.wanted for t in tensors if kind_of(t.stored) == kind}
    if of_kind == {tensor.wanted} and not tensor.narrowed:
        return kind
    of_dtype = {t.wanted for t in tensors if t.stored == tensor.stored}
    return tensor.stored if of_dtype == {tensor.wanted} else ""


def _line(group: _Group) -> str:
    first, count = group.members[0], len(group.members)
    if count == 1:
        what, them = f"{first.name} is {first.stored}", "it"
        cast = f"cast=[({left_side_for(first.name)!r}, {first.wanted!r})]"
    else:
        stored = " or ".join(dict.fromkeys(t.stored for t in group.members))
        what, them = f"{count} tensors are {stored}", "them"
        cast = f"cast={{{group.rule!r}: {first.wanted!r}}}"
    some = ", ".join(t.name for t in group.members[:NAMED])
    names = "" if count == 1 else f" ({some}{f' and {count - NAMED} more' * (count > NAMED)})"
    if first.narrowed:
        avoided = first.narrowed.format(**(_ONE if count == 1 else _SEVERAL))
        return f"{what}, which jax would narrow to {first.wanted}{names}; {avoided}, or {cast}"
    return f"{what}, but {first.wanted} is asked for{names}; {cast} converts {them}"


class SourceLeaf(Struct, frozen=True):
    """A leaf of the checkpoint that the rules keep.

    Attributes:
        name: in the restored tree.
        stored: None for a leaf that is not a tensor.
        cast: the dtype of the cast rule that applies to it.
        saturate: true if that cast clips values to the largest finite one.
    """

    name: str
    leaf: Leaf
    stored: StoredTensor | None = None
    cast: str | None = None
    saturate: bool = False

    @property
    def is_scalar(self) -> bool:
        """True if it was a Python number."""
        is_one = self.stored is not None and not self.stored.spec.shape
        return is_one and self.leaf.value_type == "scalar"

    @property
    def is_numpy(self) -> bool:
        """True if it was a numpy array."""
        return self.stored is not None and self.leaf.value_type == "np.ndarray"

    @property
    def has_data(self) -> bool:
        """True if it has data; None and empty containers have none."""
        return self.stored is not None or self.leaf.text is not None

    @property
    def what(self) -> str:
        if self.stored is not None:
            keys = "PRNG keys with data " if self.stored.is_key else ""
            return f"{keys}{self.stored.spec.dtype} of shape {list(self.stored.spec.shape)}"
        return self.leaf.kind

    @property
    def key_implementation(self) -> str | None:
        """The implementation of PRNG keys; None for other leaves."""
        found = (self.leaf.meta.get("ext_metadata") or {}).get("random_key_impl")
        return str(found) if self.stored is not None and self.stored.is_key and found else None


def restored_dtype(leaf: SourceLeaf, target: TargetLeaf | None) -> str:
    """The dtype in which a tensor is restored, if it fits."""
    stored = _spec_dtype(leaf)
    if leaf.cast is not None:
        return leaf.cast
    if target is None or target.dtype is None or target.kind == "key":
        return stored
    return target.dtype


def check_fit(leaf: SourceLeaf, target: TargetLeaf, found: Mismatches) -> None:
    """Adds every difference between a leaf with data and its target to ``found``, but dtypes that a cast could convert."""
    if leaf.stored is None:
        if target.kind != "string":
            _add_other_kind(leaf, target, found)
    elif target.kind == "string":
        _add_other_kind(leaf, target, found)
    elif target.kind == "scalar":
        _check_scalar(leaf, leaf.stored, target, found)
    elif target.kind == "key":
        _check_key(leaf, leaf.stored, target, found)
    else:
        _check_shape(leaf, leaf.stored.spec.shape, target, found)
        _check_dtype(leaf, target, found)


def wanted_dtype(
    leaf: SourceLeaf, stored: StoredTensor, target: TargetLeaf | None, becomes_jax: bool
) -> WantedDtype:
    """The dtype that a tensor without a cast rule must get; ``needs_cast`` where values could change, or jax would silently
    narrow it."""
    dtype = stored.spec.dtype
    is_array = target is not None and target.kind not in ("string", "scalar", "key")
    wanted = str(target.dtype) if target is not None and is_array else dtype
    narrowed = narrowed_by_jax(numpy_dtype(dtype)) if becomes_jax and wanted == dtype else None
    if narrowed is not None:
        words = _OUT_OF_LAYOUT if target is None and leaf.is_numpy else _AS_NUMPY
        return WantedDtype(leaf.name, dtype, str(narrowed), words, needs_cast=True)
    return WantedDtype(leaf.name, dtype, wanted, needs_cast=not is_lossless(dtype, wanted))


_AS_NUMPY = "set jax_enable_x64, restore {them} as {a}numpy array{s}"
_OUT_OF_LAYOUT = (
    "set jax_enable_x64, take {them} out of the layout, so that {stay} {a}numpy array{s}"
)


def check_for_jax(leaf: SourceLeaf, target: TargetLeaf | None, found: Mismatches) -> None:
    """Adds a tensor that is converted to a dtype which jax would silently narrow."""
    dtype = restored_dtype(leaf, target)
    narrowed = None if dtype == _spec_dtype(leaf) else narrowed_by_jax(numpy_dtype(dtype))
    if narrowed is not None:
        found.add(
            "dtype",
            f"{leaf.name} becomes {dtype}, which jax would narrow to {narrowed}; set jax_enable_x64, restore it as a "
            f"numpy array, or ask for {narrowed}",
        )


def _add_other_kind(leaf: SourceLeaf, target: TargetLeaf, found: Mismatches) -> None:
    found.add("kind", f"{leaf.name} is {leaf.what}, but {target.what} is asked for")


def _check_shape(
    leaf: SourceLeaf, stored: tuple[int, ...], target: TargetLeaf, found: Mismatches
) -> None:
    if stored != target.shape:
        found.add(
            "shape", f"{leaf.name} has shape {list(stored)}, but {list(target.shape)} is asked for"
        )


def _check_dtype(leaf: SourceLeaf, target: TargetLeaf, found: Mismatches) -> None:
    stored, dtype = _spec_dtype(leaf), str(target.dtype)
    if leaf.cast is not None and leaf.cast != dtype:
        found.add("dtype", f"{leaf.name} is cast to {leaf.cast}, but {dtype} is asked for")
    elif leaf.stored is not None and leaf.stored.is_key and dtype != stored:
        found.add("dtype", f"{leaf.name} is {leaf.what}, but {target.what} is asked for")


def _check_scalar(
    leaf: SourceLeaf, stored: StoredTensor, target: TargetLeaf, found: Mismatches
) -> None:
    kind = kind_of(leaf.cast or stored.spec.dtype)
    if math.prod(stored.spec.shape) != 1 or stored.spec.shape or stored.is_key:
        _add_other_kind(leaf, target, found)
    elif kind != type(target.leaf).__name__:
        found.add(
            "dtype",
            f"{leaf.name} is {leaf.cast or stored.spec.dtype}, but {target.what} is asked for",
        )


def _check_key(
    leaf: SourceLeaf, stored: StoredTensor, target: TargetLeaf, found: Mismatches
) -> None:
    implementation = leaf.key_implementation
    if implementation is None:
        found.add(
            "kind", f"{leaf.name} is {leaf.what}, but PRNG keys ({target.dtype}) are asked for"
        )
        return
    shape, dtype = key_type(stored, implementation)
    _check_shape(leaf, shape, target, found)
    if dtype != target.dtype:
        found.add("dtype", f"{leaf.name} has PRNG keys {dtype}, but {target.dtype} is asked for")


def has_jax() -> bool:
    """True if jax is installed."""
    try:
        import jax  # noqa: F401  whether it is there
    except ImportError:
        return False
    return True


def require_jax(why: str) -> None:
    """Raises MissingPackageError, with the reason ``why``, if jax is not installed."""
    if not has_jax():
        raise MissingPackageError(
            f"{why}; {how_to_install('jax')}, or leave out the arguments that need it (numpy arrays do not)"
        )


def key_type(stored: StoredTensor, implementation: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the keys with this data; an implementation unknown to jax keeps its name and shape."""
    import jax

    data = jax.ShapeDtypeStruct(stored.spec.shape, jax.numpy.uint32)
    try:
        keys = jax.eval_shape(lambda d: jax.random.wrap_key_data(d, impl=implementation), data)
    except (ValueError, TypeError):
        return stored.spec.shape, implementation
    return tuple(keys.shape), str(keys.dtype)


def _spec_dtype(leaf: SourceLeaf) -> str:
    return "" if leaf.stored is None else leaf.stored.spec.dtype


def is_lossless(stored: str, restored: str) -> bool:
    """True if every value of ``stored`` is one of ``restored``, of the same kind.

    >>> is_lossless("bfloat16", "float32"), is_lossless("int8", "float32")
    (True, False)
    """
    if stored == restored:
        return True
    if kind_of(stored) != kind_of(restored):
        return False
    if kind_of(stored) == "int":
        return _range_within(stored, restored)
    if kind_of(stored) == "complex":
        return (stored, restored) == ("complex64", "complex128")
    # Every floating type that exists is narrower than float32 in range and precision, or one of these.
    return restored == "float64" or (restored == "float32" and stored != "float64")


def _range_within(stored: str, restored: str) -> bool:
    import ml_dtypes

    info: Any = ml_dtypes.iinfo  # not annotated
    inner, outer = info(numpy_dtype(stored)), info(numpy_dtype(restored))
    return bool(outer.min <= inner.min and inner.max <= outer.max)
