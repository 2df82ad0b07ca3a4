"""``reshard demo``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from reshard.cli.console import print_json


def demo(*, directory: Path | None = None, as_json: bool = False) -> None:
    """Reshard a real checkpoint before your eyes, by the commands you would type.

    Trains a small transformer on 4×2 simulated devices, saves it with Orbax, converts it to a mesh
    of 8, verifies, restores it with stock Orbax and compares bit by bit. Needs jax, optax and
    orbax-checkpoint, and some twenty seconds.

    Options:
        --dir DIR: Keep everything here. Default: a temporary folder, removed.

    Examples:
        $ reshard demo
        $ reshard demo --dir ./demo
    """
    from reshard.demo import run_demo

    if not as_json:
        run_demo(directory)
        return
    with _story_on_stderr():
        run_demo(directory)
    print_json({"command": "demo", "directory": str(directory) if directory else None})


@contextmanager
def _story_on_stderr() -> Iterator[None]:
    """Sends what this process and its children print to stderr, so that stdout has JSON only."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
