"""Tensors in the pickle of ``torch.save``, by the functions of torch that would make them: as they are, as parameters, with attributes.

``torch/_utils.py`` and ``torch/_tensor.py`` declare the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reshard.answers.record import safe
from reshard.formats.pickle.nodes import Built, Name, Persistent
from reshard.formats.torch.archived_tensor import is_tensor
from reshard.formats.torch.plain_value import PLAIN_NAMES, Unread

_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_MAKERS = ("torch._utils._rebuild_", "torch._tensor._rebuild_")

_REFUSED: Mapping[str, str] = {
    "torch._utils._rebuild_qtensor": "a quantised tensor; save it after dequantize()",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor; save it after to_dense()",
    "torch._utils._rebuild_nested_tensor": "a nested tensor; save it after to_padded_tensor()",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor of the device 'meta', which has no elements",
    "torch.storage._load_from_bytes": "a storage in a pickle of its own",
}
"""Functions that make values that are not read, and the kinds of these, in words."""

STATE_NAMES: Mapping[str, str] = {
    **PLAIN_NAMES,
    "numpy.core.multiarray.scalar": "numpy.number",
    "numpy._core.multiarray.scalar": "numpy.number",
    "numpy.core.multiarray._reconstruct": "numpy.ndarray",
    "numpy._core.multiarray._reconstruct": "numpy.ndarray",
}
"""The names in a pickle of a state dict, and their texts in nodes; any other name is its own text."""

_MOST_WRAPPERS = 8
"""A tensor with attributes that is a parameter with attributes has four."""


class SavedTensor(Struct, frozen=True):
    """A tensor in a pickle.

    Attributes:
        tensor: the node that ``archived_tensor`` reads; an Unread for one that is not read.
        attributes: the states of its wrappers, which may hold tensors too.
    """

    tensor: Built | Unread
    attributes: list[Any]


def saved_tensor(value: Any) -> SavedTensor | None:
    """The tensor that a node would be; None for anything else."""
    if isinstance(value, Persistent):
        return SavedTensor(Unread("a storage without a tensor"), [])
    if not isinstance(value, Built):
        return None
    inner, wrapped_by, attributes = _unwrapped(value)
    if is_tensor(inner):
        return SavedTensor(inner, attributes)
    made_by = inner.name if isinstance(inner, Built) else ""
    if made_by in _REFUSED:
        return SavedTensor(Unread(_REFUSED[made_by]), attributes)
    if not wrapped_by and not made_by.startswith(_MAKERS):
        return None
    return SavedTensor(Unread(f"a tensor of {safe((wrapped_by or made_by)[:200])}"), attributes)


def _unwrapped(value: Any) -> tuple[Any, str, list[Any]]:
    """The value inside parameters and tensors with attributes, the class of the innermost of these, and the attributes."""
    wrapped_by, attributes = "", list[Any]()
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(value, Built):
            break
        attributes.append(value.state)
        given = value.arguments
        if value.name in _PARAMETERS and given:
            attributes += given[3:4]
            wrapped_by, value = value.name, given[0]
        elif value.name == _WITH_ATTRIBUTES and len(given) == 4 and _is_call(given):
            attributes.append(given[3])
            wrapped_by, value = _class_of(given[1]), Built(given[0].text, given[2])
        else:
            break
    return value, wrapped_by, attributes


def _is_call(given: tuple[Any, ...]) -> bool:
    return isinstance(given[0], Name) and isinstance(given[2], tuple)


def _class_of(value: Any) -> str:
    return value.text if isinstance(value, Name) else "a class without a name"
