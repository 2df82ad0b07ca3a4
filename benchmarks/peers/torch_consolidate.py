"""torch's own way from the files of a distributed checkpoint to full safetensors: ``torch_consolidate SRC DST``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from safetensors import safe_open
from torch.distributed.checkpoint._consolidate_hf_safetensors import (
    consolidate_safetensors_files,
)

if __name__ == "__main__":
    started = time.perf_counter()
    Path(sys.argv[2]).mkdir()
    names = set()
    for file in Path(sys.argv[1]).glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names.update(opened.keys())
    files = {name: 1 + number % 4 for number, name in enumerate(sorted(names))}
    consolidate_safetensors_files(sys.argv[1], sys.argv[2], files)
    print(f"working_s={time.perf_counter() - started:.3f}")
