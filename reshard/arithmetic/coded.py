"""Coded: a quantised weight as a decoder gets it. Decoding: the formula that a decoder makes of it.

A decoder is a function of a module for each family: ``scaled.py`` has those with a code in each element, ``packed.py`` those with several.
It compares shapes and dtypes, and raises the error of ``Coded.refused`` for what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import Dequantized
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.formats.computed.formula import Formula
from reshard.formats.computed.tensors import ComputedTensor, Operand, computed_tensor
from reshard.formats.quantized import Config, QuantizedPair
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy.typing as npt

SMALL_BYTES = 64 << 20
"""Memory for the reading of a companion of a few elements; the least budget of a conversion."""


_OF_INPUTS = {"input_scale", "input_global_scale", "input_zero_point"}

KEEP = "leave this out, and codes and scales are kept whole, as they are stored (dequantize)"
"""The remedy for codes that cannot be dequantised."""


class Decoding(Formula, frozen=True, kw_only=True):
    """A formula that turns codes into weights.

    Attributes:
        scheme: of the codes, in words.
        exact: True if each weight is code times scale to the last bit, as far as the exponent of the dtype reaches; else it is rounded.
        dtype: of the weights.
        is_turned: True if codes have the last two dimensions of weights in the other order.
    """

    scheme: str
    exact: bool
    dtype: Dequantized
    is_turned: bool = False


class Coded(Struct, frozen=True, eq=False):
    """A quantised weight.

    Attributes:
        reader: the checkpoint that has codes and companions.
        config: the part about quantisation in the model's config; empty where there is none.
        dtype: the one that is asked for.
    """

    pair: QuantizedPair
    reader: Reader
    config: Config
    dtype: Dequantized

    @property
    def codes(self) -> TensorSpec:
        """The tensor of codes."""
        return self.reader.tensors[self.pair.name].spec

    @property
    def scale(self) -> TensorSpec:
        """The tensor of scales; every pair has one."""
        return self.reader.tensors[self.pair.companions["scale"]].spec

    def companion(self, role: str) -> TensorSpec | None:
        """The companion of a role, such as ``"scale"``; None where there is none."""
        name = self.pair.companions.get(role)
        return None if name is None else self.reader.tensors[name].spec

    def weight(
        self, formula: Decoding, roles: Iterable[str], storage: Grid | None = None
    ) -> ComputedTensor:
        """The weight.

        Args:
            roles: of the operands behind the codes. Those are held; turned codes are, too, since each window needs some of every row.
            storage: its chunks, where they are not those of the codes; then it has no layout.
        """
        name, codes = weight_name(self.pair), self.codes
        if storage is None:
            spec = replace(codes, name=name, dtype=self.dtype, chunk_shape=None)
        else:
            spec = TensorSpec(name, storage.shape, self.dtype, storage)
        operands = [Operand.of(self.reader, codes.name, is_held=formula.is_turned)]
        operands += [Operand.of(self.reader, self.pair.companions[r], is_held=True) for r in roles]
        return computed_tensor(spec, formula, operands)

    def refused(self, reason: str) -> PlanError:
        """The error for codes that cannot be dequantised."""
        return PlanError(f"{self.pair.name!r} cannot be dequantised: {reason}; {KEEP}")

    def refuse_others(self, *roles: str) -> None:
        """Raises PlanError for a companion of another role; of inputs none is needed."""
        if more := self.pair.companions.keys() - _OF_INPUTS - {"scale", *roles}:
            name = self.pair.companions[min(more)]
            raise self.refused(f"nothing is known to do with {name!r} for {self.pair.scheme}")

    def unknown(self) -> PlanError:
        """The error for codes of a dtype that do not go with scales of another."""
        return self.refused(
            f"codes of {self.codes.dtype} with a scale of {self.scale.dtype} are not known"
        )

    def misfit(self, role: str) -> PlanError:
        """The error for a companion whose shape or dtype does not go with the codes."""
        codes, other = self.codes, self.reader.tensors[self.pair.companions[role]].spec
        return self.refused(
            f"{other.name!r} is {other.dtype} of shape {list(other.shape)}, which does not fit codes of {codes.dtype} and of shape "
            f"{list(codes.shape)}"
        )

    def small(self, role: str) -> npt.NDArray[Any]:
        """The elements of a small companion, read now: it says what the codes are."""
        import numpy as np

        from reshard.engine.decode.box_plan import StoredBox
        from reshard.engine.read_boxes import fill_array

        stored = self.reader.tensors[self.pair.companions[role]]
        out = np.empty(stored.spec.shape, numpy_dtype(stored.spec.dtype))
        fill_array(StoredBox.whole(stored), self.reader, out, SMALL_BYTES)
        return out


_OF_CODES = re.compile(
    r"(?:_packed|_blocks|_qdata|[./]_data|(?:[./]array)?[./]qvalue)\Z|q(?=weight\Z)|(?<![^./])_(?=[^./]+_qdata\Z)"
)
"""Endings of the names of codes that those of weights in their places lack; torchao has ``_weight_qdata``."""


def weight_name(pair: QuantizedPair) -> str:
    """The name that a weight has without quantisation."""
    return _OF_CODES.sub("", pair.name)
