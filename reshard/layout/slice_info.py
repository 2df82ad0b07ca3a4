"""SaveSliceInfo: the box of a slice in its full tensor."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from reshard.errors import LayoutError
from reshard.geometry.grid import Box

_NUMBER = re.compile(r"[0-9]{1,19}")
_EXAMPLE = '"4 3 0,4:1,1" for rows 0:4 and columns 1:2 of shape [4, 3]'


@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """One slice of a tensor: full shape, and offset and shape of the slice, in elements.

    >>> SaveSliceInfo("w", (4, 3, 5), (0, 1, 3), (4, 1, 2)).spec
    '4 3 5 0,4:1,1:3,2'

    Raises LayoutError if the slice is outside of the tensor. ``spec`` is the text that
    TensorFlow's save and restore operations take as ``shape_and_slices``.
    """

    full_name: str
    full_shape: tuple[int, ...]
    var_offset: tuple[int, ...]
    var_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for field in ("full_shape", "var_offset", "var_shape"):
            object.__setattr__(self, field, self._numbers(field))
        if not len(self.full_shape) == len(self.var_offset) == len(self.var_shape):
            raise LayoutError(
                f"a slice of {self.full_name!r} needs as many offsets and lengths as the tensor has "
                f"dimensions, but shape is {list(self.full_shape)}, offset {list(self.var_offset)}, "
                f"slice shape {list(self.var_shape)}"
            )
        for dim, (size, start, length) in enumerate(
            zip(self.full_shape, self.var_offset, self.var_shape, strict=True)
        ):
            if start < 0 or length < 0 or start + length > size:
                raise LayoutError(
                    f"a slice of {self.full_name!r} leaves the tensor: dimension {dim} has {size} "
                    f"elements, but the slice is {start}:{start + length}"
                )

    def _numbers(self, field: str) -> tuple[int, ...]:
        given = getattr(self, field)
        try:
            return tuple(map(operator.index, given))
        except TypeError:
            raise LayoutError(
                f"{field} of a slice of {self.full_name!r} must be whole numbers, one for each "
                f"dimension, not {given!r}"
            ) from None

    @classmethod
    def from_box(cls, full_name: str, full_shape: tuple[int, ...], box: Box) -> SaveSliceInfo:
        """The slice that ``box`` cuts out of a tensor of ``full_shape``."""
        return cls(full_name, full_shape, box.start, box.shape)

    @classmethod
    def from_spec(cls, spec: str, full_name: str = "") -> SaveSliceInfo:
        """Parses ``spec``; ``-`` means a whole dimension. Raises LayoutError for anything else."""
        if not isinstance(spec, str) or " " not in spec:
            raise LayoutError(
                f"a slice spec is a shape, a space and slices, as in {_EXAMPLE}, not {spec!r}"
            )
        *dims, slices = spec.split(" ")
        dims = [] if dims == [""] else dims
        pairs = slices.split(":") if slices else []
        if len(pairs) != len(dims):
            raise LayoutError(
                f"slice spec {spec!r} names {len(dims)} dimensions but {len(pairs)} slices; "
                f"expected one for each, as in {_EXAMPLE}"
            )
        shape = tuple(_number(d, spec) for d in dims)
        boxes = [_pair(p, size, spec) for p, size in zip(pairs, shape, strict=True)]
        return cls(full_name, shape, tuple(b[0] for b in boxes), tuple(b[1] for b in boxes))

    @property
    def spec(self) -> str:
        """Full dimensions joined by spaces, a space, then ``offset,length`` joined by colons."""
        dims = " ".join(map(str, self.full_shape))
        pairs = zip(self.var_offset, self.var_shape, strict=True)
        return f"{dims} " + ":".join(f"{a},{n}" for a, n in pairs)

    @property
    def box(self) -> Box:
        """The box of the slice in the full tensor."""
        stop = tuple(a + n for a, n in zip(self.var_offset, self.var_shape, strict=True))
        return Box(self.var_offset, stop)


def _number(text: str, spec: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise LayoutError(
            f"slice spec {spec!r} has {text!r} where a number was expected, as in {_EXAMPLE}"
        )
    return int(text)


def _pair(text: str, size: int, spec: str) -> tuple[int, int]:
    if text == "-":
        return 0, size
    start, comma, length = text.partition(",")
    if not comma:
        raise LayoutError(
            f"slice spec {spec!r} has {text!r} where offset,length was expected, as in {_EXAMPLE}"
        )
    return _number(start, spec), _number(length, spec)
