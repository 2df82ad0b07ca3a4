"""The command line: arguments in, tables, pictures and JSON out."""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> None:
    """The entry point of the command ``reshard``."""
    # A tree of 100,000 tensors has millions of objects that live to the end, and so do the objects of imports.
    # Searching them for cycles again and again took a tenth of a conversion.
    gc.set_threshold(100_000, 50, 100)

    from reshard.cli.app import main

    main()
