"""Dequantises a folder of fp8 with scales of blocks as compressed-tensors does, shard by shard: ``python dequantize_by_shard.py SOURCE TARGET``.

Runs in ``.oracles/torch``.
"""

from __future__ import annotations

import sys

from compressed_tensors.entrypoints.convert import FP8BlockDequantizer, convert_checkpoint


def main() -> None:
    """Convert with two workers, on the processor."""
    source, target = sys.argv[1:]
    dequantizer = FP8BlockDequantizer.from_pretrained(source)
    convert_checkpoint(source, target, dequantizer, max_workers=2, device="cpu")


if __name__ == "__main__":
    main()
