"""Four processes that save a tree of DTensors with torch's distributed checkpoint, or load one onto other meshes.

Run as ``torch_group.py save FOLDER``, ``torch_group.py load FOLDER…`` or ``torch_group.py save_distcp FOLDER`` inside the environment
of torch; prints the answer of each process as JSON. ``save`` writes ``FOLDER/single`` (a file for each process), ``FOLDER/several`` (two for
each) and ``FOLDER/settings`` (with a value that is no tensor), and tells what the tensors are. ``load`` reads the
safetensors files of each folder and tells which tensors have other bits than those that ``save`` writes. ``save_distcp`` writes ``.distcp`` files of the same tensors: ``FOLDER/together``, ``FOLDER/threads``
(several files for each process) and ``FOLDER/alone`` (by each process for itself), and tells what the tensors are. ``load_distcp`` reads
``.distcp`` files of each folder as ``load`` does. ``train FOLDER`` and ``resume FOLDER…`` are those of ``torch_training.py``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch_tensors import described, raw_bytes
from torch_training import resume, train

COUNT = 4


class Spread(NamedTuple):
    """The placements of a tensor on a mesh; none for a tensor that every process holds as it is."""

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]


class Case(NamedTuple):
    """A tensor, and how it is spread when it is saved and when it is loaded."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    saved: Spread | None
    loaded: Spread | None


def line(*placements: Placement) -> Spread:
    return Spread((4,), placements)


def square(*placements: Placement) -> Spread:
    return Spread((2, 2), placements)


ROWS, COLUMNS, COPY = Shard(0), Shard(1), Replicate()
BOTH = square(ROWS, COLUMNS)
CASES = {
    "rows": Case(torch.bfloat16, (16, 6), line(ROWS), BOTH),
    "columns": Case(torch.float32, (6, 16), line(COLUMNS), square(COLUMNS, ROWS)),
    "both": Case(torch.float16, (8, 12), BOTH, line(COLUMNS)),
    "uneven.rows": Case(torch.bfloat16, (10, 3), line(ROWS), line(COLUMNS)),
    "uneven.columns": Case(torch.int32, (3, 11), line(COLUMNS), square(COPY, COLUMNS)),
    "uneven.both": Case(torch.int16, (5, 7), BOTH, line(ROWS)),
    "uneven.twice": Case(torch.uint8, (11, 2), square(ROWS, ROWS), square(ROWS, COLUMNS)),
    "fewer.rows": Case(torch.int64, (3, 4), line(ROWS), BOTH),
    "vector": Case(torch.int8, (9,), line(ROWS), square(ROWS, COPY)),
    "some.copies": Case(torch.bool, (6, 5), square(COPY, COLUMNS), line(ROWS)),
    "copies": Case(torch.float64, (4, 4), line(COPY), BOTH),
    "deep": Case(torch.float8_e4m3fn, (4, 6, 5), square(Shard(2), ROWS), line(COLUMNS)),
    "small.float": Case(torch.float8_e5m2, (8, 4), BOTH, line(ROWS)),
    "wide.integers": Case(torch.uint32, (8, 4), line(ROWS), line(COLUMNS)),
    "wider.integers": Case(torch.uint64, (5, 4), line(COLUMNS), line(ROWS)),
    "complex": Case(torch.complex64, (6, 4), BOTH, line(ROWS)),
    "other.float": Case(torch.float8_e4m3fnuz, (6, 4), BOTH, line(ROWS)),
    "other.small.float": Case(torch.float8_e5m2fnuz, (6, 4), line(ROWS), BOTH),
    "empty.rows": Case(torch.float32, (0, 4), line(ROWS), BOTH),
    "empty.columns": Case(torch.bfloat16, (4, 0), line(ROWS), BOTH),
    "no.dtensor": Case(torch.uint16, (3, 3), None, None),
    "step": Case(torch.int64, (), None, None),
}


def full(name: str) -> torch.Tensor:
    """The whole tensor: random bits, the same in every process."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    empty = torch.empty(case.shape, dtype=case.dtype)
    top = 2 if case.dtype == torch.bool else 256
    bits = torch.randint(0, top, (empty.nbytes,), dtype=torch.uint8, generator=generator)
    return bits.view(case.dtype).reshape(case.shape)


def spread(tensor: torch.Tensor, over: Spread | None, meshes: dict[Any, DeviceMesh]) -> Any:
    """The part of this process, without a word to the others."""
    if over is None:
        return tensor
    return distribute_tensor(tensor, meshes[over.mesh], over.placements, src_data_rank=None)


def save(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    (folder,) = folders
    state = {name: spread(full(name), case.saved, meshes) for name, case in CASES.items()}
    files = {name: 1 + number % 2 for number, name in enumerate(state)}
    for form, of_each in {"single": None, "several": files}.items():
        writer = HuggingFaceStorageWriter(
            f"{folder}/{form}", fqn_to_index_mapping=of_each, save_distributed=True
        )
        dcp.save(state, storage_writer=writer)
    writer = HuggingFaceStorageWriter(f"{folder}/settings", save_distributed=True)
    dcp.save({"rows": state["rows"], "rate": 0.1}, storage_writer=writer)
    return {name: described(full(name)) for name in CASES}


def save_distcp(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    (folder,) = folders
    spreads = {name: spread(full(name), case.saved, meshes) for name, case in CASES.items()}
    state = {"model": spreads, "rate": 0.5}
    dcp.save(state, checkpoint_id=f"{folder}/together")
    writer = dcp.FileSystemWriter(f"{folder}/threads", thread_count=3)
    dcp.save(state, storage_writer=writer)
    dcp.save(state, checkpoint_id=f"{folder}/alone", use_collectives=False)
    return {f"model/{name}": described(full(name)) for name in CASES}


def load(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    return {f: wrong_tensors(f, meshes, HuggingFaceStorageReader(f)) for f in folders}


def load_distcp(folders: list[str], meshes: dict[Any, DeviceMesh]) -> Any:
    return {folder: wrong_tensors(folder, meshes, None) for folder in folders}


def wrong_tensors(folder: str, meshes: dict[Any, DeviceMesh], reader: Any) -> list[str]:
    state = {
        name: spread(torch.zeros_like(full(name)), case.loaded, meshes)
        for name, case in CASES.items()
    }
    dcp.load(
        {"model": state} if reader is None else state, storage_reader=reader, checkpoint_id=folder
    )
    wanted = {name: spread(full(name), case.loaded, meshes) for name, case in CASES.items()}
    return [name for name in CASES if local_bytes(state[name]) != local_bytes(wanted[name])]


def local_bytes(tensor: Any) -> bytes:
    return raw_bytes(tensor.to_local() if hasattr(tensor, "to_local") else tensor)


Action = Callable[[list[str], dict[Any, DeviceMesh]], Any]
ACTIONS: dict[str, Action] = {
    "save": save,
    "load": load,
    "save_distcp": save_distcp,
    "load_distcp": load_distcp,
    "train": train,
    "resume": resume,
}


def run(rank: int, action: Action, folders: list[str], scratch: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{scratch}/meeting", rank=rank, world_size=COUNT
    )
    meshes = {shape: init_device_mesh("cpu", shape) for shape in [(4,), (2, 2)]}
    answer = action(folders, meshes)
    Path(scratch, str(rank)).write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as scratch:
        # Forked, so that torch is imported once; nothing here has threads yet.
        words = (ACTIONS[sys.argv[1]], sys.argv[2:], scratch)
        mp.start_processes(run, words, nprocs=COUNT, start_method="fork")
        answers = [json.loads(Path(scratch, str(rank)).read_text()) for rank in range(COUNT)]
    print(json.dumps(answers))
