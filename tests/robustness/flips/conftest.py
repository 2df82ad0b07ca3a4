"""The checkpoints of ``benchmarks.flips.run``, made once for each process of the tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from benchmarks.flips.specimens import Specimen, make_specimens


@pytest.fixture(scope="session")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Specimen]]:
    """By name: output in every form, and fingerprinted checkpoints of stock Orbax."""
    logging.disable(logging.WARNING)
    made = make_specimens(tmp_path_factory.mktemp("specimens"))
    logging.disable(logging.NOTSET)
    yield {specimen.name: specimen for specimen in made}
