"""Refuses calls that need jax if it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from reshard.errors import MissingPackageError
from reshard.version import how_to_install


def check_jax(what: str) -> None:
    """Raises MissingPackageError if jax is not installed; ``what`` names the call that needs it."""
    if find_spec("jax") is None:
        raise MissingPackageError(
            f"{what} needs jax, which is not installed; {how_to_install('jax')}"
        )
