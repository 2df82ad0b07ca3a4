"""What stock Orbax restores of a converted checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp


def restore_tree(path: Path) -> Any:
    """What stock Orbax restores, without being told what is there."""
    return ocp.PyTreeCheckpointer().restore(main_item(path))


def main_item(path: Path) -> Path:
    """Where v0's single-item restore finds the tree of a checkpoint saved in any mode."""
    return next((path / n for n in ("state", "default", "model") if (path / n).is_dir()), path)
