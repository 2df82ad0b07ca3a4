"""Reads maps, from files and from the recipes of this package: rules by which tensors of a source become those of a target.

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

Each recipe says in its ``about`` from which version of the model code it was made. A file is a map, and behind it the choices by which
other maps of its family are made: each choice has names, and each name its replacements in the text::

    variants:
    - tied:                                     # NAME-tied
      - [not tied, tied]
    - unstacked:                                # NAME-unstacked, and NAME-tied-unstacked
      - ['shape: l ', 'shape: ']
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from importlib.resources import files
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import UNSET, Meta, Struct, field

from reshard.errors import LayoutError
from reshard.geometry.dtypes import STORED_DTYPES
from reshard.layout.changes import full_name
from reshard.layout.layout_file import CHANGE_KEYS, LAYOUT_KEYS, MAP_KEYS
from reshard.layout.layout_text import (
    Document,
    dotted_keys,
    given_document,
    parse_json,
    parse_yaml,
    read_document,
)
from reshard.layout.read_layout import Sections, layout_of_document, part_of, read_changes
from reshard.maps.expression import Expression, parse_expression
from reshard.maps.rule import MAX_SIZE, Lengths, MapFile, MapRule, Refusal
from reshard.maps.shape import RuleShape, names_of, parse_shape
from reshard.maps.template import Template, parse_template
from reshard.strict import Steps, says

T = TypeVar("T")

Refuse = Callable[[str], NoReturn]
"""Raises the error of a rule."""

_Name = Annotated[str, says("the name of a tensor, or a list of names", min_length=1)]
_Names = Annotated[
    _Name | Annotated[tuple[_Name, ...], says("at least one name", min_length=1)],
    says("the name of a tensor, or a list of names"),
]
_Arithmetic = Annotated[
    Annotated[str, Meta(min_length=1)] | int | float,
    says("a number, or arithmetic such as 'sqrt(d)'"),
]
_Number = Annotated[float, says("a number")]
_Start = Annotated[str, says("the beginning of names", min_length=1)]


class _Rule(Struct, forbid_unknown_fields=True):
    """A rule, as a file has it; UNSET where it lacks a key."""

    from_: _Names = field(name="from", default=())
    to: _Names = ()
    shape: Annotated[
        str, Meta(min_length=1, description="the dimensions, such as 'e v -> v e'")
    ] = ""
    multiply: _Arithmetic = ""
    divide: _Arithmetic = ""
    add: _Arithmetic = ""
    pad: Any = UNSET
    crop: Any = UNSET
    fill: Any = UNSET
    cast: Any = UNSET
    same_as: _Name = ""


class _Group(Struct, forbid_unknown_fields=True):
    under: _Start = ""
    into: _Start = ""
    map: Any = UNSET


class _Refusal(Struct, forbid_unknown_fields=True):
    match: Annotated[str, says("a regular expression", min_length=1)]
    reason: Annotated[str, says("why these tensors cannot be converted", min_length=1)]


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
    return map_of_document(given_document(given, where, lines))


def map_of_document(document: Document) -> MapFile:
    """The map that a document says; LayoutError, with file and line, if it is wrong."""
    sections = document.read(Sections)
    if sections.map is UNSET:
        document.refuse((), "the key 'map' is missing")
    own = _plain(part_of(document, (*MAP_KEYS, *CHANGE_KEYS)).data)
    _check_length(len(json.dumps(part_of(document, MAP_KEYS).data, default=str)), document.where)
    layout = {key for key in LAYOUT_KEYS if key in document.data}
    rules = tuple(itertools.islice(_rules(document, ("map",), "", ""), MAX_RULES + 1))
    if len(rules) > MAX_RULES:
        document.refuse(
            ("map",),
            f"expected at most {MAX_RULES:,} rules, found more; write one rule with an index, such as 'layers.{{l}}.w', for names "
            "that differ in a number, or several maps",
        )
    if not rules:
        document.expect(("map",), "a list of at least one rule")
    sizes, mesh_sizes = _sizes(document) if sections.sizes is not UNSET else ({}, ())
    about = Annotated[str, says("what the map is for", min_length=1)]
    return MapFile(
        rules,
        sizes,
        mesh_sizes,
        tuple(_refusals(document)) if sections.refuse is not UNSET else (),
        read_changes(document, sections),
        own,
        "" if sections.about is UNSET else document.read(about, ("about",)),
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


def _refusals(document: Document) -> Iterator[Refusal]:
    listed = Annotated[tuple[_Refusal, ...], says("a list of mappings")]
    for i, refusal in enumerate(document.read(listed, ("refuse",))):
        steps: Steps = ("refuse", i)
        document.compiled((*steps, "match"), refusal.match)
        label = f"{dotted_keys(steps)} ({document.place(steps)})"
        yield Refusal(refusal.match, refusal.reason, label)


def _check_length(characters: int, where: str) -> None:
    if characters > MAX_CHARACTERS:
        raise LayoutError(
            f"{where}: expected a map of at most {MAX_CHARACTERS:,} characters, found {characters:,}; write one rule with an index, such as "
            "'layers.{l}.w', for names that differ in a number, or several maps"
        )


def _sizes(document: Document) -> tuple[dict[str, int], tuple[str, ...]]:
    """The sizes that are numbers, and the names of those of mesh axes."""
    given = document.data["sizes"]
    if not isinstance(given, dict):
        document.expect(("sizes",), "a mapping of names and sizes, such as {two: 2}")
    for name in given:
        if not name.isidentifier() or not name.isascii():
            document.refuse(
                ("sizes",),
                f"{name!r} is no name of a size; write letters, digits and underscores",
            )
    of_mesh = tuple(name for name, size in given.items() if size == "mesh")
    sizes = (name for name in given if name not in of_mesh)
    return {name: _whole(document, ("sizes", name), "mesh") for name in sizes}, of_mesh


def _whole(document: Document, steps: Steps, other: str) -> int:
    expected = f"a whole number of at least 1, or {other}"
    size = document.at(steps)
    if type(size) is not int or size < 1:
        document.expect(steps, expected)
    return (
        size if size <= MAX_SIZE else document.expect(steps, f"{expected} and at most {MAX_SIZE}")
    )


def _rules(document: Document, steps: Steps, under: str, into: str) -> Iterator[MapRule]:
    listed = Annotated[list[Any], says("a list of rules, such as {from: a, to: b}")]
    for i, each in enumerate(document.read(listed, steps)):
        at = (*steps, i)
        if isinstance(each, dict) and "map" in each:
            group = document.read(_Group, at)
            below = (under + group.under, into + group.into)
            yield from _rules(document, (*at, "map"), *below)
        else:
            yield _RuleReader(document, at, document.read(_Rule, at)).rule(under, into)


class _RuleReader(Struct, frozen=True):
    """Reads one rule, ``given``, at its steps in a document."""

    document: Document
    steps: Steps
    given: _Rule

    def rule(self, under: str, into: str) -> MapRule:
        """The rule; ``under``, ``into``: prefixes of its sources and targets."""
        given = self.given
        sources, targets = (
            self.templates("from", given.from_, under),
            self.templates("to", given.to, into),
        )
        if not targets and not given.same_as:
            self.refuse("the key 'to' is missing; a tensor that is left out is named by drop")
        rule = MapRule(
            sources,
            targets,
            self.tried("shape", parse_shape, given.shape) if given.shape else None,
            self.arithmetic("multiply", given.multiply),
            self.arithmetic("divide", given.divide),
            self.arithmetic("add", given.add),
            self.lengths("pad"),
            self.lengths("crop"),
            self.number() if given.fill is not UNSET else None,
            self.dtype() if given.cast is not UNSET else None,
            self.same_as(under if sources else into) if given.same_as else None,
            f"{dotted_keys(self.steps)} ({self.document.place(self.steps)})",
        )
        _check(self.refuse, rule)
        return rule

    def refuse(self, problem: str) -> NoReturn:
        self.document.refuse(self.steps, problem)

    def tried(self, key: str, parse: Callable[[str], T], text: str, *more: int | str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            self.document.refuse((*self.steps, key, *more), str(error))

    def same_as(self, prefix: str) -> Template:
        given = self.document.at(self.steps)
        if len(given) != 2 or not ({"from", "to"} & given.keys()):
            self.refuse(
                "same_as stands beside one 'from', a source that equals another one and is not written, or one 'to', a target that is "
                "a copy of another one; remove the other keys"
            )
        return self.tried("same_as", parse_template, prefix + self.given.same_as)

    def templates(
        self, key: str, names: str | tuple[str, ...], prefix: str
    ) -> tuple[Template, ...]:
        if isinstance(names, str):
            return (self.tried(key, parse_template, prefix + names),)
        return tuple(self.tried(key, parse_template, prefix + n, i) for i, n in enumerate(names))

    def arithmetic(self, key: str, given: str | float) -> Expression | None:
        text = given if isinstance(given, str) else repr(given)
        return self.tried(key, parse_expression, text) if text else None

    def number(self) -> float:
        steps, given = (*self.steps, "fill"), self.given.fill
        if given in ("nan", "inf", "-inf"):  # as a record has it
            return float(given)
        return self.document.read(_Number, steps)

    def dtype(self) -> str:
        steps, given = (*self.steps, "cast"), full_name(self.given.cast)
        return self.document.choice(steps, "dtype", given, STORED_DTYPES)

    def lengths(self, key: str) -> Lengths:
        given: Any = getattr(self.given, key)
        if given is UNSET:
            return {}
        if not isinstance(given, dict) or not given:
            expected = f"a mapping of dimensions and lengths, such as {{v: 256128}}, for {key}"
            self.document.expect((*self.steps, key), expected)
        return {name: self.length(key, name, length) for name, length in given.items()}

    def length(self, key: str, name: str, given: Any) -> Expression:
        is_text = isinstance(given, str)
        text = (
            given if is_text else str(_whole(self.document, (*self.steps, key, name), "arithmetic"))
        )
        return self.tried(key, parse_expression, text, name)


def _check(refuse: Refuse, rule: MapRule) -> None:
    """Refuses a rule that is wrong by its words alone."""
    shape = rule.shape
    if rule.same_as is not None:
        return
    if shape is None:
        _check_whole(refuse, rule)
        return
    if len(shape.left) != len(rule.sources) and (rule.sources or any(shape.left)):
        _refuse_count(refuse, "left", len(shape.left), "from", len(rule.sources))
    if len(shape.right) != len(rule.targets):
        _refuse_count(refuse, "right", len(shape.right), "to", len(rule.targets))
    _check_lengths(refuse, rule, shape)


def _check_lengths(refuse: Refuse, rule: MapRule, shape: RuleShape) -> None:
    on_right = {name for side in shape.right for name in names_of(side)}
    for key, lengths in (("pad", rule.pad), ("crop", rule.crop)):
        for name in lengths:
            if name not in on_right:
                refuse(
                    f"{key} names {name!r}, which is no dimension on the right side of the shape"
                )


def _check_whole(refuse: Refuse, rule: MapRule) -> None:
    if not rule.sources:
        refuse(
            "the key 'from' is missing; targets that one number fills need a shape, such as '-> e', and a fill"
        )
    if len(rule.sources) != 1 or len(rule.targets) != 1:
        refuse("several names need a shape, which says how their dimensions belong together")
    if rule.pad or rule.crop:
        refuse("pad and crop need a shape, which names the dimensions")
    if rule.fill is not None:
        refuse("fill needs pad, or a rule without 'from'; remove it")


def _refuse_count(refuse: Refuse, side: str, found: int, key: str, names: int) -> None:
    refuse(
        f"the shape has {found} on its {side} side, but {key!r} names {names}; write one for each, with commas between them"
    )


def plain_text(file: MapFile) -> str:
    """A map as one line of JSON."""
    return json.dumps(file.plain, separators=(",", ":"))


_SUFFIX = ".yaml"
_VARIANTS = "\nvariants:\n"


def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, sorted."""
    return tuple(sorted(_texts()))


@lru_cache(maxsize=1)
def _texts() -> Mapping[str, str]:
    """The text of each recipe, by name."""
    found: dict[str, str] = {}
    for file in files("reshard").joinpath("recipes").iterdir():
        if file.name.endswith(_SUFFIX):
            text, _, choices = file.read_text("utf-8").partition(_VARIANTS)
            found |= _variants(file.name.removesuffix(_SUFFIX), f"{text}\n", choices)
    return found


def _variants(name: str, text: str, choices: str) -> dict[str, str]:
    """The map of a file, and those that its choices make of it, by name."""
    from reshard.layout.layout_text import parse_yaml

    made = {name: text}
    for choice in parse_yaml(choices, name).data or ():
        made |= {
            f"{before}-{variant}": reduce(lambda done, change: done.replace(*change), changes, text)
            for before, text in made.items()
            for variant, changes in choice.items()
        }
    return made


def recipe_text(name: str) -> str:
    """The text of a recipe, which is a map file. KeyError for a name that none has."""
    return _texts()[name]


def recipe(name: str) -> MapFile:
    """The map of a recipe. KeyError for a name that none has."""
    return parse_map(recipe_text(name), f"recipe {name}")
