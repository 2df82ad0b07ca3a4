"""The sources of the conversions, saved once by stock Orbax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.orbax_trees import save_pytree
from tests.robustness.crash.cases import make_tree


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Never changed: tests that change a source copy it."""
    root, tree = tmp_path_factory.mktemp("sources"), make_tree()
    return {
        "raw": save_pytree(root / "raw", tree, use_ocdbt=False, use_compression=False),
        "zstd": save_pytree(root / "zstd", tree),
    }
