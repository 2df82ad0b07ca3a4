"""CheckedJson: reads the JSON of a slices.json field by field; anything unexpected is an error that names file and field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from reshard.errors import CorruptError, FormatError
from reshard.formats.foreign import refuse_stand_in
from reshard.formats.json.safe_json import checked_text, refuse_many_values
from reshard.formats.limits import MAX_SLICE_VALUES
from reshard.formats.slices.slice_file import FILE_NAME

MAX_ELEMENTS = 1 << 62
"""The largest number that a file may have."""

_DIGEST = re.compile(r"[0-9a-f]{16}")


class CheckedJson:
    """Reads one file; ``path`` is the name that errors give it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, what: str) -> NoReturn:
        raise CorruptError(
            f"slice metadata {self.path} is damaged: {what}; restore the file, or remove it to work "
            f"without slice metadata and digests"
        )

    def json(self, data: bytes) -> dict[str, Any]:
        text = self.text(data)
        try:
            document = json.loads(text, object_pairs_hook=self.unique, parse_constant=self.constant)
        except ValueError as error:
            refuse_stand_in(data, self.path)
            self.fail(f"it is not JSON ({str(error)[:120]})")
        if not isinstance(document, dict):
            self.fail(f"expected a JSON object, found {type(document).__name__}")
        return document

    def text(self, data: bytes) -> str:
        try:
            refuse_many_values(data, FILE_NAME, MAX_SLICE_VALUES)
            return checked_text(data, FILE_NAME)
        except FormatError as error:
            self.fail(f"it is not JSON ({error})")

    def unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            self.fail("an object has the same member twice")
        return members

    def constant(self, text: str) -> NoReturn:
        self.fail(f"it is not JSON (found {text})")

    def mapping(self, document: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = document.get(key)
        if not isinstance(value, dict):
            self.fail(f"expected {key!r} to be an object, found {type(value).__name__}")
        return value

    def pairs(self, value: object, what: str) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, list):
            self.fail(f"expected the {what} to be a list of pairs, found {str(value)[:80]}")
        pairs = [self.texts(pair, what) for pair in value]
        if not all(len(pair) == 2 for pair in pairs):
            self.fail(f"expected the {what} to be pairs, found {str(value)[:80]}")
        return tuple((first, second) for first, second in pairs)

    def texts(self, value: object, what: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(t, str) for t in value):
            self.fail(f"expected the {what} to be a list of strings, found {str(value)[:80]}")
        return tuple(value)

    def numbers(self, value: object, what: str, least: int = 0) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(
            type(n) is int and least <= n <= MAX_ELEMENTS for n in value
        ):
            self.fail(
                f"expected the {what} to be whole numbers from {least}, found {str(value)[:80]}"
            )
        return tuple(value)

    def digest(self, value: object, where: str) -> str:
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            self.fail(f"{where} has {str(value)[:40]!r} where 16 hex digits were expected")
        return value

    def optional(self, value: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
        found = value.get(key)
        if found is not None and not isinstance(found, kind):
            self.fail(f"{where} has a {key} of the wrong kind: {str(found)[:60]}")
        return found
