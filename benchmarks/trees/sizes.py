"""How large the benchmark tree is: a transformer's weights, by width and number of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

FULL_WIDTH, FULL_VOCABULARY = 2048, 65536
LARGEST_DISTINCT_LAYERS = 12


@dataclass(frozen=True)
class Tensor:
    """Path, shape and dtype of one tensor of the tree."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (2 if self.dtype == "bfloat16" else 4)


@dataclass(frozen=True)
class TreeSize:
    """A tree of one embedding and ``layers`` layers, or of ``small`` tensors of 4 KiB.

    Full size is 2.25 GB: a 65536 × 2048 float32 embedding and 12 layers of float32 and bfloat16
    kernels.
    """

    width: int = FULL_WIDTH
    vocabulary: int = FULL_VOCABULARY
    layers: int = 12
    small: int = 0

    @classmethod
    def named(cls, name: str) -> TreeSize:
        """The size called ``tiny``, ``small`` or ``full``, or the one nearest to a number of GiB."""
        known = {
            "tiny": cls(64, 1024, 5),
            "small": cls(1024, 16384, 5),
            "full": cls(),
        }
        return known[name] if name in known else cls._of_gib(name)

    @classmethod
    def _of_gib(cls, name: str) -> TreeSize:
        try:
            wanted = float(name) * 2**30
        except ValueError:
            raise SystemExit(
                f"--size {name}: expected tiny, small, full or a number of GiB"
            ) from None
        bare = cls(layers=0).nbytes
        return cls(layers=max(1, round((wanted - bare) / (cls(layers=1).nbytes - bare))))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the tree."""
        if self.small:
            yield from (
                Tensor(("scales", f"{i:06d}"), (32, 32), "float32") for i in range(self.small)
            )
            return
        yield Tensor(("embedding",), (self.vocabulary, self.width), "float32")
        for layer in range(self.layers):
            for name, shape, dtype in self._kernels():
                yield Tensor(("layers", f"{layer:03d}", name, "kernel"), shape, dtype)

    def _kernels(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        square, wide = (self.width, self.width), (self.width, 4 * self.width)
        yield from ((name, square, "bfloat16") for name in ("query", "key", "value"))
        yield "out", square, "float32"
        yield "up", wide, "float32"
        yield "down", wide[::-1], "bfloat16"
