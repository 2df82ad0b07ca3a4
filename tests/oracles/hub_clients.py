"""Repositories by huggingface_hub, of any version: whole ones, ranges of their files, and the tensors of their headers.

Imported by ``loading_process.py`` and ``models_process.py``. The address and the token are in the environment.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import HfFileSystem


def version() -> str:
    return huggingface_hub.__version__


def snapshot(
    repository: str, folder: str | None = None, revision: str | None = None
) -> dict[str, str]:
    """The SHA-256 of each file of a repository that is downloaded: to a folder, or to the cache."""
    found = huggingface_hub.snapshot_download(repository, revision=revision, local_dir=folder)
    return sums(found)


def sums(folder: str) -> dict[str, str]:
    """The SHA-256 of each file below a folder, but for what the client keeps for itself."""
    root = Path(folder)
    files = [
        path
        for path in root.rglob("*")
        if path.is_file() and ".cache" not in path.relative_to(root).parts
    ]
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def about(repository: str) -> dict[str, Any]:
    """The client's view of a repository: its commit, and its files with their sizes."""
    api = huggingface_hub.HfApi()
    told = api.model_info(repository, files_metadata=True)
    files = {file.path: file.size for file in api.list_repo_tree(repository, recursive=True)}
    names = [file.rfilename for file in told.siblings]
    return {
        "commit": told.sha,
        "files": files,
        "siblings": names,
        "refs": [ref.name for ref in api.list_repo_refs(repository).branches],
    }


def listed(path: str) -> dict[str, int]:
    """The files below a path, and their sizes, as a file system finds them."""
    found = HfFileSystem().find(path, detail=True)
    return {name: entry["size"] for name, entry in found.items()}


def ranges(path: str, bounds: list[list[int]]) -> list[bytes]:
    """Ranges of a file, by an open file of a file system, and by a call for each."""
    files = HfFileSystem()
    found = [files.cat_file(path, start=start, end=end) for start, end in bounds]
    with files.open(path, block_size=0) as whole:
        if whole.read() != files.cat_file(path):
            raise ValueError(f"{path} differs when it is read as a stream")
    with files.open(path) as file:
        for (start, end), same in zip(bounds, found, strict=True):
            file.seek(start)
            if file.read(end - start) != same:
                raise ValueError(f"{path}[{start}:{end}] differs by the way it is read")
    return found


def headers(repository: str) -> dict[str, Any]:
    """The dtype and the shape of each tensor, by the headers of the files alone."""
    found = huggingface_hub.get_safetensors_metadata(repository)
    return {
        name: [info.dtype, list(info.shape)]
        for file in found.files_metadata.values()
        for name, info in file.tensors.items()
    }


FUNCTIONS = (version, snapshot, sums, about, listed, ranges, headers)
