"""torch's own way from a distributed checkpoint to safetensors, and such a checkpoint to begin with.

``torch_dcp make DST MIB``: ``dcp.save`` of a state dict of matrices in bfloat16.
``torch_dcp to-safetensors SRC DST``: ``dcp_to_torch_save``, then ``torch.load`` and safetensors' ``save_file``.

Runs in the environment of torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ROWS, COLUMNS = 4096, 2048
"""16 MiB in bfloat16."""


def make(target: Path, mib: int) -> None:
    """As many matrices as fill ``mib``."""
    random = torch.Generator().manual_seed(0)
    state = {
        f"layers.{number}.weight": torch.randn((ROWS, COLUMNS), generator=random).bfloat16()
        for number in range(max(1, mib // 16))
    }
    dcp.save(state, checkpoint_id=target, no_dist=True)


def to_safetensors(source: Path, target: Path) -> None:
    """All tensors in one file of safetensors."""
    target.mkdir()
    between = target / "state.pt"
    dcp_to_torch_save(source, between)
    save_file(torch.load(between, weights_only=True), target / "model.safetensors")
    between.unlink()


if __name__ == "__main__":
    what, first, second = sys.argv[1:]
    if what == "make":
        make(Path(first), int(second))
    else:
        to_safetensors(Path(first), Path(second))
