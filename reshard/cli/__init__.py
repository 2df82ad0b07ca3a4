"""The command line: arguments in, tables, pictures and JSON out."""

from __future__ import annotations

import gc

__all__ = ["main", "start_init"]


def main() -> None:
    """The entry point of the command ``reshard``."""
    _search_less()
    from reshard.cli.app import main

    main()


def start_init() -> None:
    """The entry point of the command ``reshard-init``."""
    _search_less()
    from reshard.cli.init_container import start

    start()


def _search_less() -> None:
    # A tree of 100,000 tensors has millions of objects that live to the end, and so do the objects of imports.
    # Searching them for cycles again and again took a tenth of a conversion.
    gc.set_threshold(100_000, 50, 100)
