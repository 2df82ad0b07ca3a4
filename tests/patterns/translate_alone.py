"""Translates patterns with ``reshard/patterns`` of this tree alone, under any Python and without a package.

Run as ``python translate_alone.py FOLDER`` with patterns as JSON on standard input; prints what came of each. Only the standard
library is here, so that a Python for which nothing is installed can be asked.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import types
from typing import Any


class Struct:
    """As msgspec's, as far as the translation needs it."""

    def __init_subclass__(cls, **_: object) -> None:
        dataclasses.dataclass(cls)


def load(folder: str) -> Any:
    """The module ``dialect`` of a folder, without the package that it is in."""
    for name, path in (("msgspec", []), ("reshard", []), ("reshard.patterns", [folder])):
        package = types.ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package
    vars(sys.modules["msgspec"])["Struct"] = Struct
    return importlib.import_module("reshard.patterns.dialect")


def told(dialect: Any, pattern: str, in_lines: bool) -> Any:
    try:
        return dataclasses.asdict(dialect.translated(pattern, in_lines=in_lines))
    except dialect.RefusedError as error:
        return f"refused: {error}"
    except re.error:
        return "no pattern"


if __name__ == "__main__":
    found = load(sys.argv[1])
    asked = json.load(sys.stdin)
    answers = [told(found, pattern, in_lines) for pattern in asked for in_lines in (False, True)]
    json.dump({"version": list(sys.version_info[:2]), "answers": answers}, sys.stdout)
