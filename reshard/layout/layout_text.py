"""The text of a layout file, YAML or JSON, as plain data with the line of each part.

Only maps, lists, strings, numbers, booleans and null are read. Before anything is built, the text's events are read in
a stream, and size, depth, aliases and tags are checked. So neither a deep nor an exploding document costs memory or
stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from msgspec import Struct, field

from reshard.errors import MAX_SHOWN_CHARACTERS, LayoutError, MissingError, StorageError, shorten
from reshard.patterns.compile import Counts, Pattern, compile_pattern, shown
from reshard.strict import Steps, WrongPartError, keys_of, strict

T = TypeVar("T")

MAX_BYTES = 4 << 20
"""Largest layout file: a rule for each of 50,000 tensors."""

MAX_DEPTH = 16
"""Deepest nesting; a valid file needs 5."""

MAX_PARTS = 500_000
"""Most values, keys and lists of a YAML text: ten for each of 50,000 rules."""

MAX_SCALAR_CHARACTERS = 64
"""Longest number, date or boolean in YAML; parsing ``1:59:59`` takes time quadratic in its length."""

_STRING = "tag:yaml.org,2002:str"

_PlainValue = None | int | str | Sequence["_PlainValue"] | Mapping[str, "_PlainValue"]

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OTHER_MEANING = re.compile(r"null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_SHORT, _LONG = 0x100, 0x10000


class Document(Struct, frozen=True):
    """Plain data, and its place in a file.

    Attributes:
        where: the file, as the user named it.
        lines: first line of each part, counted from 1; empty for JSON.
        counts: adds up the counts of the patterns that were read.
    """

    data: Any
    where: str
    lines: Mapping[Steps, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    def place(self, steps: Steps) -> str:
        """``file:line`` of a part, or the file alone if the line is not known."""
        return f"{self.where}:{self.lines[steps]}" if steps in self.lines else self.where

    def at(self, steps: Steps) -> Any:
        """The part of the data at these steps."""
        part = self.data
        for step in steps:
            part = part[step]
        return part

    def read(self, kind: type[T], steps: Steps = ()) -> T:
        """The part at these steps as a record of msgspec, whose descriptions complete "expected …"; LayoutError where it is none."""
        try:
            return strict(self.at(steps), kind)
        except WrongPartError as wrong:
            found = (*steps, *wrong.steps)
            if wrong.problem == "missing":
                self.refuse(found[:-1], f"the key {found[-1]!r} is missing")
            known = keys_of(wrong.kind)
            if wrong.problem == "unknown":
                self.refuse(found, _unknown("key", found[-1], known))
            mapping = f"a mapping with the keys {', '.join(known)}"
            self.refuse(
                found,
                f"expected {mapping if known else wrong.expected}, found {_brief(wrong.part)}",
            )

    def refuse(self, steps: Steps, problem: str) -> NoReturn:
        """Raises the LayoutError of a part, with its file, line and key."""
        raise LayoutError(": ".join(filter(None, (self.place(steps), dotted_keys(steps), problem))))

    def expect(self, steps: Steps, expected: str) -> NoReturn:
        """Raises the LayoutError of a part that is something else than expected."""
        self.refuse(steps, f"expected {expected}, found {_brief(self.at(steps))}")

    def choice(self, steps: Steps, kind: str, given: Any, known: Sequence[str]) -> str:
        """One of the strings of ``known``, which the part names."""
        if not isinstance(given, str):
            self.expect(steps, f"one of {', '.join(known)}")
        if given not in known:
            self.refuse(steps, _unknown(kind, given, known))
        return given

    def compiled(self, steps: Steps, pattern: str) -> Pattern:
        """The regular expression that a part has."""
        subject = f"{self.place(steps)}: {dotted_keys(steps)}: {shown(pattern)}"
        return compile_pattern(pattern, subject, LayoutError, self.counts)


def dotted_keys(steps: Steps) -> str:
    """The path of keys, such as ``rules[2].match``; "" for the whole document."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")


def _unknown(kind: str, found: Any, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # only an error needs it

    near = get_close_matches(str(found)[:100], known, n=1)
    hint = f"did you mean {near[0]!r}? known" if near else "known"
    return f"unknown {kind} {_brief(found)}; {hint}: {', '.join(known)}"


def _brief(data: Any) -> str:
    if isinstance(data, dict | list | tuple) and len(data) > 8:
        return f"a {type(data).__name__} of {len(data)} entries"
    return "null" if data is None else shorten(data, MAX_SHOWN_CHARACTERS)


def given_document(given: Any, where: str, lines: Mapping[Steps, int] | None) -> Document:
    """The document of data that a caller gives; LayoutError for a set in it, which has no order and would read as a list."""
    data = dict(given) if isinstance(given, Mapping) else given
    if _has_set(data):
        raise LayoutError(f"{where}: expected lists, found a set, which has no order; write a list")
    return Document(data, where, lines or {})


def _has_set(data: Any) -> bool:
    seen, left = set[int](), [data]
    while left:
        part = left.pop()
        if isinstance(part, set | frozenset):
            return True
        if isinstance(part, dict | list | tuple) and id(part) not in seen:
            seen.add(id(part))  # against data that contains itself
            left += part.values() if isinstance(part, dict) else part
    return False


def read_document(path: str | Path, kind: str = "layout") -> Document:
    """The document in a file: JSON if its name ends in ``.json``, else YAML; ``kind`` names the file in messages.

    Raises StorageError if it cannot be read, LayoutError if its text is refused.
    """
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        found = MissingError if isinstance(error, FileNotFoundError) else StorageError
        raise found(f"{kind} file {where!r} cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise LayoutError(f"{where}: a {kind} file may have at most {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LayoutError(f"{where}: not UTF-8 text, at byte {error.start}") from None
    return parse_json(text, where) if where.endswith(".json") else parse_yaml(text, where)


def parse_json(text: str, where: str) -> Document:
    """The document of a JSON text; a repeated key, NaN and deep nesting are LayoutErrors."""

    def refuse_constant(name: str) -> NoReturn:
        raise LayoutError(f"{where}: {name} is not a JSON number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise LayoutError(
                    f"{where}: key {shorten(key)} appears twice in one object; keep one"
                )
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise LayoutError(
            f"{where}:{error.lineno}: not JSON: {error.msg} at column {error.colno}"
        ) from None
    except RecursionError:
        _refuse_depth(where)
    except LayoutError:
        raise
    except ValueError:
        raise LayoutError(f"{where}: a number has too many digits") from None
    _check_depth(data, where)
    return Document(data, where)


def _check_depth(data: Any, where: str, depth: int = 1) -> None:
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if children and depth > MAX_DEPTH:
        _refuse_depth(where)
    for child in children:
        _check_depth(child, where, depth + 1)


def _refuse_depth(where: str) -> NoReturn:
    raise LayoutError(f"{where}: nested deeper than {MAX_DEPTH} levels; a layout file needs 5")


def parse_yaml(text: str, where: str) -> Document:
    """The document of a YAML text; aliases, tags, repeated keys and deep nesting are LayoutErrors."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader), where)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise LayoutError(f"{where}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise LayoutError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    lines: dict[Steps, int] = {}
    data = None if root is None else _build(root, (), where, lines)
    return Document(data, where, lines)


def _check_events(events: Any, where: str) -> None:
    import yaml

    depth = 0
    for number, event in enumerate(events):
        place = f"{where}:{event.start_mark.line + 1}"
        if number > MAX_PARTS:
            raise LayoutError(f"{place}: a layout file may have at most {MAX_PARTS:,} parts")
        if isinstance(event, yaml.AliasEvent):
            raise LayoutError(
                f"{place}: aliases (*{str(event.anchor)[:80]}) are refused; write the part out"
            )
        if getattr(event, "tag", None) is not None:
            raise LayoutError(f"{place}: tags ({event.tag[:80]}) are refused; write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            _refuse_depth(place)


def _build(node: Any, steps: Steps, where: str, lines: dict[Steps, int]) -> Any:
    import yaml

    lines[steps] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            key = _key(key_node, where)
            if key in found:
                raise LayoutError(
                    f"{where}:{key_node.start_mark.line + 1}: key {shorten(key)} appears twice; keep one"
                )
            found[key] = _build(value, (*steps, key), where, lines)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_build(v, (*steps, i), where, lines) for i, v in enumerate(node.value)]
    return _scalar(node, where)


def _key(node: Any, where: str) -> str:
    if node.tag != _STRING:
        found = repr(node.value[:40]) if isinstance(node.value, str) else "a list or a mapping"
        raise LayoutError(
            f"{where}:{node.start_mark.line + 1}: a key must be a string, not {found}; quote it"
        )
    return str(node.value)


def _scalar(node: Any, where: str) -> Any:
    import yaml

    if node.tag == _STRING:
        return str(node.value)
    if len(node.value) > MAX_SCALAR_CHARACTERS:
        raise LayoutError(
            f"{where}:{node.start_mark.line + 1}: {node.value[:40]!r}... has too many digits; quote it if it is text"
        )
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, ArithmeticError, yaml.YAMLError):
        raise LayoutError(
            f"{where}:{node.start_mark.line + 1}: {node.value[:40]!r} is not a value; quote it if it is text"
        ) from None


def flow(value: _PlainValue) -> str:
    """The value in YAML's flow style; ``parse_yaml`` reads it back.

    >>> flow({"match": "^embed$", "axes": [None, "model"]})
    "{match: '^embed$', axes: [null, model]}"
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{flow(k)}: {flow(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        is_bare = _BARE.fullmatch(value) and not _OTHER_MEANING.fullmatch(value)
        return value if is_bare else quoted(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(flow, value))}]"
    return "null" if value is None else str(value)


def quoted(text: str) -> str:
    """The text between quotes: single ones, or double ones if it needs escapes."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < _SHORT
        else f"\\u{code:04x}"
        if code < _LONG
        else f"\\U{code:08x}"
    )
