"""Refuses calls that need jax where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from reshard.errors import MissingPackageError
from reshard.version import how_to_install


def check_jax(what: str) -> None:
    """Raises MissingPackageError, which says what needs jax, where it is not installed."""
    if find_spec("jax") is None:
        raise MissingPackageError(
            f"{what} needs jax, which is not installed; {how_to_install('jax')}"
        )
