"""The command line: arguments in, tables, pictures and JSON out."""

from __future__ import annotations

from reshard.cli.app import main

__all__ = ["main"]
