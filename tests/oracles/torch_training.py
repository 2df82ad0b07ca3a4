"""A model that four processes train with FSDP2 and AdamW, and train on from a distributed checkpoint.

Imported by ``torch_group.py``, inside the environment of torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

STEPS = 2
"""So many before the checkpoint, and after it."""


def made(meshes: dict[Any, DeviceMesh], seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small model, whose rows four processes cannot share evenly, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 10), torch.nn.Linear(10, 7), torch.nn.Linear(7, 3)
    )
    for layer in model:
        fully_shard(layer, mesh=meshes[4,])
    fully_shard(model, mesh=meshes[4,])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.95))


def losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[str]:
    """The loss of each step, exactly."""
    found = []
    for step in range(first, first + STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        loss = model(torch.randn(8, 6, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
    return found


def train(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    """Saves after some steps; the losses of the next ones."""
    (folder,) = folders
    model, optimizer = made(meshes, 1)
    losses(model, optimizer, 0)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer, "step": STEPS}, checkpoint_id=folder)
    return losses(model, optimizer, STEPS)


def resume(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    """The losses of a model that is restored from each folder."""
    found = []
    for folder in folders:
        model, optimizer = made(meshes, 2)
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
        found.append(losses(model, optimizer, state["step"]))
    return found
