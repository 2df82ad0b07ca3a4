"""The command line: arguments in, tables, pictures and JSON out."""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> None:
    """What ``reshard`` on a command line calls."""
    # A tree of 100,000 tensors is millions of objects that live to the end, and so is what an import
    # makes: to look through them again and again for cycles took a tenth of a conversion.
    gc.set_threshold(100_000, 50, 100)

    from reshard.cli.app import main

    main()
