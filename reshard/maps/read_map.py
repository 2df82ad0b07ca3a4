"""Reads maps: rules by which tensors of a source become those of a target.

::

    sizes: {two: 2}                              # only what shapes do not tell
    map:
      - from: params/layers/query/kernel
        to: model.layers.{l}.q_proj.weight
        shape: e l h (p two) -> (h two p) e
        multiply: sqrt(p * two)
      - {from: lm_head.weight, same_as: model.embed_tokens.weight}
      - under: params/decoder/                   # prefixes of the names below
        into: model.
        map: [...]
    drop: ["^opt_state/"]                        # as in layout files
    cast: [{match: "weight$", dtype: bfloat16}]
    about: the purpose of the map, in words
    refuse: [{match: "experts", reason: why}]    # sources that the map cannot convert
    rules: [{match: "q_proj", axes: [model]}]    # and whatever else a layout file may say, of the targets

Every error names file, line and key, what was expected and what was found.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from reshard.errors import LayoutError
from reshard.geometry.dtypes import STORED_DTYPES
from reshard.layout.changes import full_name
from reshard.layout.layout_file import CHANGE_KEYS, KEYS, LAYOUT_KEYS, MAP_KEYS
from reshard.layout.layout_text import Document, Steps, parse_json, parse_yaml, read_document
from reshard.layout.layout_value import CheckedValue
from reshard.layout.read_layout import layout_of_document, part_of, read_changes
from reshard.maps.expression import Expression, parse_expression
from reshard.maps.rule import MAX_SIZE, Lengths, MapFile, MapRule, Refusal
from reshard.maps.shape import RuleShape, names_of, parse_shape
from reshard.maps.template import Template, parse_template

T = TypeVar("T")

_RULE_KEYS = (
    "from",
    "to",
    "shape",
    "multiply",
    "divide",
    "add",
    "pad",
    "crop",
    "fill",
    "cast",
    "same_as",
)
_GROUP_KEYS = ("under", "into", "map")

MAX_CHARACTERS = 262_144
"""Longest map, as its own text or as one line of JSON."""

MAX_RULES = 10_000


def load_map(path: str | os.PathLike[str]) -> MapFile:
    """The map in a file: JSON if its name ends in ``.json``, else YAML.

    Raises StorageError if it cannot be read, LayoutError with file and line if it is wrong.
    """
    return map_of_document(read_document(os.fspath(path), "map"))


def parse_map(
    given: Mapping[str, Any] | str, where: str = "map", lines: Mapping[Steps, int] | None = None
) -> MapFile:
    """The map in plain data, or in the text of a file; ``where`` names it in errors."""
    if isinstance(given, str):
        _check_length(len(given), where)
        is_json = given.lstrip().startswith("{")
        return map_of_document(parse_json(given, where) if is_json else parse_yaml(given, where))
    data = dict(given) if isinstance(given, Mapping) else given
    return map_of_document(Document(data, where, lines or {}))


def map_of_document(document: Document) -> MapFile:
    """The map that a document says; LayoutError, with file and line, if it is wrong."""
    sections = CheckedValue(document.data, document).mapping(KEYS, required=("map",))
    own = _plain(part_of(document, (*MAP_KEYS, *CHANGE_KEYS)).data)
    _check_length(len(json.dumps(part_of(document, MAP_KEYS).data, default=str)), document.where)
    layout = {key for key in LAYOUT_KEYS if key in sections}
    rules = tuple(itertools.islice(_rules(sections["map"], "", ""), MAX_RULES + 1))
    if len(rules) > MAX_RULES:
        sections["map"].refuse(
            f"expected at most {MAX_RULES:,} rules, found more; write one rule with an index, such as 'layers.{{l}}.w', for names "
            "that differ in a number, or several maps"
        )
    if not rules:
        sections["map"].expect("a list of at least one rule")
    sizes, mesh_sizes = _sizes(sections["sizes"]) if "sizes" in sections else ({}, ())
    refused = sections["refuse"].items("a list of mappings") if "refuse" in sections else []
    about = sections["about"].text("what the map is for") if "about" in sections else ""
    return MapFile(
        rules,
        sizes,
        mesh_sizes,
        tuple(map(_refusal, refused)),
        read_changes(sections),
        own,
        about,
        document.where,
        layout_of_document(part_of(document, layout)) if layout else None,
    )


def _plain(data: Any) -> Any:
    """Data that JSON can hold: numbers that it lacks are text, against a record that cannot be read."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _refusal(value: CheckedValue) -> Refusal:
    parts = value.mapping(("match", "reason"), required=("match", "reason"))
    reason = parts["reason"].text("why these tensors cannot be converted")
    return Refusal(parts["match"].regex(), reason, f"{value.key} ({value.place})")


def _check_length(characters: int, where: str) -> None:
    if characters > MAX_CHARACTERS:
        raise LayoutError(
            f"{where}: expected a map of at most {MAX_CHARACTERS:,} characters, found {characters:,}; write one rule with an index, such as "
            "'layers.{l}.w', for names that differ in a number, or several maps"
        )


def _sizes(value: CheckedValue) -> tuple[dict[str, int], tuple[str, ...]]:
    """The sizes that are numbers, and the names of those of mesh axes."""
    if not isinstance(value.data, dict):
        value.expect("a mapping of names and sizes, such as {two: 2}")
    each = {name: value.at(_name(value, name)) for name in value.data}
    of_mesh = tuple(name for name, size in each.items() if size.data == "mesh")
    return {n: _whole(s, "mesh") for n, s in each.items() if n not in of_mesh}, of_mesh


def _name(value: CheckedValue, name: str) -> str:
    if not name.isidentifier() or not name.isascii():
        value.refuse(f"{name!r} is no name of a size; write letters, digits and underscores")
    return name


def _whole(value: CheckedValue, other: str) -> int:
    expected = f"a whole number of at least 1, or {other}"
    size = value.whole(expected, least=1)
    return size if size <= MAX_SIZE else value.expect(f"{expected} and at most {MAX_SIZE}")


def _rules(value: CheckedValue, under: str, into: str) -> Iterator[MapRule]:
    for each in value.items("a list of rules, such as {from: a, to: b}"):
        if isinstance(each.data, dict) and "map" in each.data:
            parts = each.mapping(_GROUP_KEYS)
            below = under + _prefix(parts, "under")
            yield from _rules(parts["map"], below, into + _prefix(parts, "into"))
        else:
            yield _rule(each, under, into)


def _prefix(parts: Mapping[str, CheckedValue], key: str) -> str:
    return parts[key].text("the beginning of names") if key in parts else ""


def _rule(value: CheckedValue, under: str, into: str) -> MapRule:
    parts = value.mapping(_RULE_KEYS)
    sources = _templates(parts, "from", under)
    targets = _templates(parts, "to", into)
    same_as = None
    if "same_as" in parts:
        same_as = _same_as(value, parts, under if sources else into)
    elif not targets:
        value.refuse("the key 'to' is missing; a tensor that is left out is named by drop")
    rule = MapRule(
        sources,
        targets,
        _read(parts, "shape", "the dimensions, such as 'e v -> v e'", parse_shape),
        _arithmetic(parts, "multiply"),
        _arithmetic(parts, "divide"),
        _arithmetic(parts, "add"),
        _lengths(parts, "pad"),
        _lengths(parts, "crop"),
        _number(parts["fill"]) if "fill" in parts else None,
        _dtype(parts["cast"]) if "cast" in parts else None,
        same_as,
        f"{value.key} ({value.place})",
    )
    _check(value, rule)
    return rule


def _same_as(value: CheckedValue, parts: Mapping[str, CheckedValue], prefix: str) -> Template:
    if len(parts) != 2 or not ({"from", "to"} & parts.keys()):
        value.refuse(
            "same_as stands beside one 'from', a source that equals another one and is not written, or one 'to', a target that is "
            "a copy of another one; remove the other keys"
        )
    return _template(parts["same_as"], prefix)


def _templates(parts: Mapping[str, CheckedValue], key: str, prefix: str) -> tuple[Template, ...]:
    if key not in parts:
        return ()
    value = parts[key]
    if isinstance(value.data, list | tuple):
        found = value.items("a list of names")
        if not found:
            value.expect("at least one name")
        return tuple(_template(each, prefix) for each in found)
    return (_template(value, prefix),)


def _template(value: CheckedValue, prefix: str) -> Template:
    return _tried(
        value,
        lambda: parse_template(prefix + value.text("the name of a tensor, or a list of names")),
    )


def _tried(value: CheckedValue, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        value.refuse(str(error))


def _read(
    parts: Mapping[str, CheckedValue], key: str, expected: str, parse: Callable[[str], T]
) -> T | None:
    if key not in parts:
        return None
    return _tried(parts[key], lambda: parse(parts[key].text(expected)))


def _arithmetic(parts: Mapping[str, CheckedValue], key: str) -> Expression | None:
    if key not in parts:
        return None
    value = parts[key]
    if isinstance(value.data, int | float) and not isinstance(value.data, bool):
        return _tried(value, lambda: parse_expression(repr(value.data)))
    return _tried(
        value, lambda: parse_expression(value.text("a number, or arithmetic such as 'sqrt(d)'"))
    )


def _number(value: CheckedValue) -> float:
    if value.data in ("nan", "inf", "-inf"):  # as a record has it
        return float(value.data)
    if not isinstance(value.data, int | float) or isinstance(value.data, bool):
        value.expect("a number")
    return float(value.data)


def _dtype(value: CheckedValue) -> str:
    named = CheckedValue(full_name(value.data), value.document, value.steps)
    return named.choice("dtype", STORED_DTYPES)


def _lengths(parts: Mapping[str, CheckedValue], key: str) -> Lengths:
    if key not in parts:
        return {}
    value = parts[key]
    if not isinstance(value.data, dict) or not value.data:
        value.expect(f"a mapping of dimensions and lengths, such as {{v: 256128}}, for {key}")
    return {name: _length(value.at(name)) for name in value.data}


def _length(value: CheckedValue) -> Expression:
    text = value.data if isinstance(value.data, str) else str(_whole(value, "arithmetic"))
    return _tried(value, lambda: parse_expression(text))


def _check(value: CheckedValue, rule: MapRule) -> None:
    """Refuses a rule that is wrong by its words alone."""
    shape = rule.shape
    if rule.same_as is not None:
        return
    if shape is None:
        _check_whole(value, rule)
        return
    if len(shape.left) != len(rule.sources) and (rule.sources or any(shape.left)):
        _refuse_count(value, "left", len(shape.left), "from", len(rule.sources))
    if len(shape.right) != len(rule.targets):
        _refuse_count(value, "right", len(shape.right), "to", len(rule.targets))
    _check_lengths(value, rule, shape)


def _check_lengths(value: CheckedValue, rule: MapRule, shape: RuleShape) -> None:
    on_right = {name for side in shape.right for name in names_of(side)}
    for key, lengths in (("pad", rule.pad), ("crop", rule.crop)):
        for name in lengths:
            if name not in on_right:
                value.refuse(
                    f"{key} names {name!r}, which is no dimension on the right side of the shape"
                )


def _check_whole(value: CheckedValue, rule: MapRule) -> None:
    if not rule.sources:
        value.refuse(
            "the key 'from' is missing; targets that one number fills need a shape, such as '-> e', and a fill"
        )
    if len(rule.sources) != 1 or len(rule.targets) != 1:
        value.refuse("several names need a shape, which says how their dimensions belong together")
    if rule.pad or rule.crop:
        value.refuse("pad and crop need a shape, which names the dimensions")
    if rule.fill is not None:
        value.refuse("fill needs pad, or a rule without 'from'; remove it")


def _refuse_count(value: CheckedValue, side: str, found: int, key: str, names: int) -> None:
    value.refuse(
        f"the shape has {found} on its {side} side, but {key!r} names {names}; write one for each, with commas between them"
    )


def plain_text(file: MapFile) -> str:
    """A map as one line of JSON."""
    return json.dumps(file.plain, separators=(",", ":"))


__all__ = ["KEYS", "LayoutError", "load_map", "parse_map", "plain_text"]
