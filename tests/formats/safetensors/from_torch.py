"""The beginning of tests with files that processes of torch saved: each folder becomes an Orbax checkpoint."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import reshard

Case = TypeVar("Case", bound=Hashable)


def orbax_of_each(sources: Mapping[Case, Path], root: Path, layout: Any) -> dict[Case, Path]:
    """The Orbax checkpoints, below ``root``, of safetensors folders, by the same keys."""
    made = {case: root / "orbax" / str(number) for number, case in enumerate(sources)}
    for case, path in made.items():
        reshard.convert(sources[case], path, to="orbax", layout=layout)
    return made
