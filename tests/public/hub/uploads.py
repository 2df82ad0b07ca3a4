"""A folder of this host as a commit on a hub."""

from __future__ import annotations

from pathlib import Path

from tests.emulators.hub import Hub


def commit(hub: Hub, local: Path, name: str = "org/model", below: str = "", **options: str) -> str:
    """Commits a file, all files below a folder, or those of a prefix to a repository below a path; returns the URL of the place."""
    found = [local] if local.is_file() else [*local.rglob("*")]
    if not local.exists():  # several files, whose names begin with it
        found = [*local.parent.glob(f"{local.name}.*")]
    files = {
        f"{below}{str(path).removeprefix(str(local))}".strip("/"): path.read_bytes()
        for path in found
        if path.is_file()
    }
    hub.repo(name).commit(files, **options)
    return f"hf://{name}/{below}".rstrip("/")
