"""Dequantize: codes and scales as the weights that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from msgspec import Struct

from reshard.arguments import check_choice
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.storage.location import Location

WeightType = Literal["bfloat16", "float32"]
"""The dtypes of dequantised weights."""


class Dequantize(Struct, frozen=True):
    """The weights of a quantised checkpoint, as a Computation.

    Attributes:
        dtype: of the weights.
    """

    dtype: WeightType

    @classmethod
    def asked(cls, dtype: str) -> Dequantize:
        """As the option gives it; PlanError for another dtype."""
        check_choice("dequantize", dtype, get_args(WeightType))
        return cls(dtype)  # type: ignore[arg-type] # one of the choices

    @property
    def option(self) -> tuple[str, str]:
        return "dequantize", self.dtype

    @property
    def text(self) -> str:
        return self.dtype

    @property
    def tensor_bytes(self) -> int:
        return 2000

    def applied(self, base: Reader, root: Location) -> Reader:
        """The checkpoint of the weights, under the names that they have without quantisation."""
        del root
        raise PlanError(f"{base.uri} has no quantised weights")

    def state(self) -> Iterator[str]:
        return iter(())
