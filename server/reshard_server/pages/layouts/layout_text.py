"""A layout as text for reading and editing: JSON, which is also YAML, with one rule per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def layout_text(layout: Mapping[str, Any]) -> str:
    """The text of a layout's content; parsing it returns the same content.

    >>> print(layout_text({"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": ["x"]}]}))
    {
      "mesh": {"axes": ["x"], "shape": [4]},
      "rules": [
        {"match": "w", "axes": ["x"]}
      ]
    }
    """
    members = [f"  {_line(name)}: {_value(value)}" for name, value in layout.items()]
    return "{\n" + ",\n".join(members) + "\n}" if members else "{}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"    {_line(item)}" for item in value) + "\n  ]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
