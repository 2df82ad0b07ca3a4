"""The pickle of a tensor, which ``formats.torch.archived_tensor`` reads: as torch writes it for a tensor without gradient on the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any

from reshard.formats.pickle.encode import Call, Global, Reference, encode_pickle
from reshard.formats.torch.archived_tensor import REBUILD_V2, REBUILD_V3, UNTYPED
from reshard.formats.torch.dtypes import STORAGE_DTYPES
from reshard.geometry.dtypes import storage_bytes

_STORAGES = {dtype: storage for storage, dtype in STORAGE_DTYPES.items()}
_NO_HOOKS = Call(Global("collections", "OrderedDict"))


@lru_cache(maxsize=1024)  # layers of a model are alike
def tensor_pickle(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The pickle of a row-major tensor, whose elements are the record ``data/0``.

    A dtype without a typed storage, such as float8, has an untyped one, and is named beside it.
    """
    is_typed, count = dtype in _STORAGES, math.prod(shape)
    if is_typed:
        of = Global("torch", _STORAGES[dtype])
    else:
        of, count = Global("torch.storage", UNTYPED), count * storage_bytes(dtype)
    storage = Reference(("storage", of, "0", "cpu", count))
    arguments: tuple[Any, ...] = (storage, 0, shape, _row_major(shape), False, _NO_HOOKS)
    if not is_typed:
        arguments = (*arguments, Global("torch", dtype))
    rebuild = REBUILD_V2 if is_typed else REBUILD_V3
    return encode_pickle(Call(Global("torch._utils", rebuild), arguments))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements."""
    steps = itertools.accumulate(reversed([max(1, size) for size in shape[1:]]), mul, initial=1)
    return tuple(reversed(list(steps))) if shape else ()
