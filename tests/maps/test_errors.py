"""What is wrong with a map: file, line, rule and tensor, what was found, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import LayoutError, MissingError, PlanError, StorageError
from reshard.maps.expression import parse_expression
from reshard.maps.given_map import map_of
from reshard.maps.shape import parse_shape
from tests.maps.by_numpy import mapped

WORDS: list[tuple[str, str]] = [
    ("map: []", "map:1: map: expected a list of at least one rule, found []"),
    ("maps: []", "map:1: maps: unknown key 'maps'; did you mean 'map'? known: mesh, rules, partitions, unmatched, select, drop, rename, cast, about, sizes, map"),
    ("sizes: {a: 0}\nmap: [{from: a, to: b}]", "map:1: sizes.a: expected a whole number of at least 1, or mesh, found 0"),
    ("sizes: {a: meshes}\nmap: [{from: a, to: b}]", "map:1: sizes.a: expected a whole number of at least 1, or mesh, found 'meshes'"),
    ("sizes: {a-b: 2}\nmap: [{from: a, to: b}]", "map:1: sizes: 'a-b' is no name of a size; write letters, digits and underscores"),
    ("map:\n- {from: a}", "map:2: map[0]: the key 'to' is missing; a tensor that is left out is named by drop"),
    ("map:\n- {to: a}", "map:2: map[0]: the key 'from' is missing; targets that one number fills need a shape, such as '-> e', and a fill"),
    ("map:\n- {from: [a, b], to: c}", "map:2: map[0]: several names need a shape, which says how their dimensions belong together"),
    ("map:\n- {from: [], to: c}", "map:2: map[0].from: expected at least one name, found []"),
    ("map:\n- {from: a, to: b, transpose: true}", "map:2: map[0].transpose: unknown key 'transpose'; known: from, to, shape, "),
    ("map:\n- {from: a, to: b, shape: 'e f'}", "map:2: map[0].shape: 'e f' must have one arrow, such as 'e v -> v e'"),
    ("map:\n- {from: a, to: b, shape: '(e f -> e f'}", "map:2: map[0].shape: '(e f -> e f' needs a dimension where it has its end"),
    ("map:\n- {from: a, to: b, shape: 'e f) -> e f'}", "map:2: map[0].shape: 'e f) -> e f' needs a dimension where it has ')'"),
    ("map:\n- {from: a, to: b, shape: '[e | f -> e f'}", "map:2: map[0].shape: '[e | f -> e f' needs a dimension where it has its end"),
    ("map:\n- {from: a, to: b, shape: 'e e -> e'}", "map:2: map[0].shape: 'e e -> e' has 'e' twice on one side; every dimension has a name of its own"),
    ("map:\n- {from: a, to: b, shape: 'e 2 -> e'}", "map:2: map[0].shape: 2 in 'e 2 -> e' has no name; name the dimension, and give its size (sizes)"),
    ("map:\n- {from: a, to: b, shape: 'e % f -> e'}", "map:2: map[0].shape: '%' in 'e % f -> e' is no word of a shape; write names, 1, ( ) and [ | ]"),
    ("map:\n- {from: a, to: b, shape: 'e, f -> e'}", "map:2: map[0]: the shape has 2 on its left side, but 'from' names 1; write one for each, with commas between them"),
    ("map:\n- {from: a, to: 'b.{l'}", "map:2: map[0].to: 'b.{l' has '{' without its other brace; double it if the name has it"),
    ("map:\n- {from: a, to: 'b.{2}'}", "map:2: map[0].to: 'b.{2}' has {2}, which names no index; write the number itself"),
    ("map:\n- {from: 'a{i}{j}', to: b}", "map:2: map[0].from: 'a{i}{j}' has two indices side by side, whose digits cannot be told apart"),
    ("map:\n- {from: a, to: b, multiply: 'sqrt(d'}", "map:2: map[0].multiply: a closing parenthesis is missing in 'sqrt(d'"),
    ("map:\n- {from: a, to: b, multiply: 'exp(d)'}", "map:2: map[0].multiply: 'exp' is no function; there are sqrt, ceil, float32, bfloat16, float16"),
    ("map:\n- {from: a, to: b, multiply: '__import__(1)'}", "map:2: map[0].multiply: '__import__' is no function; there are "),
    ("map:\n- {from: a, to: b, multiply: '2 ** 9'}", "map:2: map[0].multiply: '*' is not expected there in '2 ** 9'"),
    ("map:\n- {from: a, to: b, add: 'd.x'}", "map:2: map[0].add: '.' in 'd.x' is no arithmetic; write + - * / ( ), numbers, names and "),
    ("map:\n- {from: a, to: b, cast: float7}", "map:2: map[0].cast: unknown dtype 'float7'; "),
    ("map:\n- {from: a, to: b, pad: {v: 8}}", "map:2: map[0]: pad and crop need a shape, which names the dimensions"),
    ("map:\n- {from: a, to: b, shape: v -> v, pad: {w: 8}}", "map:2: map[0]: pad names 'w', which is no dimension on the right side of the shape"),
    ("map:\n- {from: a, to: b, shape: v -> v, pad: {v: 1.5}}", "map:2: map[0].pad.v: expected a whole number of at least 1, or arithmetic, found 1.5"),
    ("map:\n- {from: a, to: b, shape: v -> v, pad: {v: 64*ceil(v}}", "map:2: map[0].pad.v: a closing parenthesis is missing in '64*ceil(v'"),
    ("map: [{from: a, to: b}]\nrefuse: [{match: a}]", "map:2: refuse[0]: the key 'reason' is missing"),
    ("map: [{from: a, to: b}]\nrefuse: [{match: '(', reason: why}]", "map:2: refuse[0].match: '(' is no regular expression"),
    ("map: [{from: a, to: b}]\nrefuse: {a: why}", "map:2: refuse: expected a list of mappings, found {'a': 'why'}"),
    ("map:\n- {from: a, to: b, fill: 3}", "map:2: map[0]: fill needs pad, or a rule without 'from'; remove it"),
    ("map:\n- {from: a, to: b, same_as: c}", "map:2: map[0]: same_as stands beside one 'from', a source that equals another one "),
    ("map:\n- &x {from: a, to: b}\n- *x", "aliases (*x) are refused; write the part out"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WORDS)
def test_words_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(said)):
        map_of(f"{text}\n")


Shapes = Mapping[str, Sequence[int]]
CHECKPOINTS: list[tuple[str, Shapes, str]] = [
    ("[{from: b, to: c}]", {"a/kernel": (2,)}, "map[0] (map:1): 'b' matches none of the 1 tensors; correct or remove the rule"),
    ("[{from: 'layer.{l}.kernel', to: 'c.{l}'}]", {"layers.0.kernel": (2,)}, "map[0] (map:1): 'layer.{l}.kernel' matches none of the 1 tensors; the nearest is 'layers.0.kernel'; correct or remove the rule"),
    ("[{from: a, to: c}]", {"a": (2,), "b": (2,)}, "no rule of the map takes 1 of 2 tensors ('b'); write a rule for each, or name them in drop"),
    ("[{from: a, to: c}, {from: a, to: d}]", {"a": (2,)}, "map[1] (map:1): it takes 'a', which map[0] (map:1) takes, too; a tensor is taken by one rule: "),
    ("[{from: a, to: c}, {from: b, to: c}]", {"a": (2,), "b": (2,)}, "map[1] (map:1): it makes 'c', but map[0] (map:1) makes it, too; name the targets apart"),
    ("[{from: 'a.{l}', to: c}]", {"a.0": (2,), "a.1": (2,)}, "map[0] (map:1): it makes 'c', but it makes it twice; name the targets apart"),
    ("[{from: 'a.{l}', to: 'c.{l}'}]", {"a.0": (2,), "a.2": (2,)}, "map[0] (map:1): 'a.{l}' stands for 2 tensors, but none for l = 1 of 3; numbers begin at 0 and leave none out: where they begin later, write {l+first} and give the size 'first'"),
    ("[{from: 'a.{l}', to: 'c.{l}'}]", {"a.0": (2,), "a.1": (3,)}, "map[0] (map:1): 'a.{l}' stands for 'a.0', float32 [2], and 'a.1', float32 [3]; a rule is for tensors of one shape and dtype, so write a rule for each"),
    ("[{from: a, to: c, shape: e f g -> e f g}]", {"a": (2, 3)}, "map[0] (map:1): 'a' has 2 dimensions, [2, 3], but 'e f g' has 3"),
    ("[{from: a, to: c, shape: (h d) -> h d}]", {"a": (6,)}, "map[0] (map:1): the size of 'h' does not follow from the shapes; give it (sizes), or that of 'd', which with it makes one axis"),
    ("[{from: a, to: c, shape: (h d) e -> h d e}]", {"a": (6, 4)}, "the size of 'h' does not follow"),
    ("[{from: [a, b], to: c, shape: 'e f, e g -> e [f | g]'}]", {"a": (2, 3), "b": (4, 3)}, "map[0] (map:1): axis 0 of 'b' is 4, but e with e = 2 is 2"),
    ("[{from: a, to: c, shape: e f -> e}]", {"a": (2, 3)}, "map[0] (map:1): its right side lacks the dimension 'f' of 3, so that elements would be left out; name it there, or as an index of 'to', or take a part of it (crop)"),
    ("[{from: a, to: c, shape: e -> e r}]", {"a": (2,)}, "map[0] (map:1): the size of 'r' does not follow from the shapes; give it (sizes)"),
    ("[{from: a, to: 'c.{x}', shape: e -> e}]", {"a": (2,)}, "map[0] (map:1): 'x' in 'c.{x}' is no index of 'from', no dimension of the left side, and no size that is given (sizes)"),
    ("[{from: 'a.{l}', to: c, shape: e -> e}]", {"a.0": (2,), "a.1": (2,)}, "map[0] (map:1): 'l' is an index of 'from' that neither 'to' nor the right side has, so that tensors would be left out; name it in one of them"),
    ("[{from: 'a.{l}', to: 'c.{l}', shape: l e -> e}]", {"a.0": (2, 3), "a.1": (2, 3)}, "map[0] (map:1): 'l' is an index of 'a.{l}' and a dimension of it, 'l e'; give one of them another name"),
    ("[{from: a, to: 'c.{l}', shape: l e -> l e}]", {"a": (2, 3)}, "map[0] (map:1): 'l' is an index of 'c.{l}' and a dimension of it, 'l e'; give one of them another name"),
    ("[{from: a, to: [c, d], shape: 'e -> e, e'}]", {"a": (2,)}, "map[0] (map:1): its left side has 1 part, but its right side 2 parts; each part of a source becomes a part of a target, in the order of the text"),
    ("[{from: a, to: c, shape: v -> v, pad: {v: 1}}]", {"a": (2,)}, "map[0] (map:1): pad asks for 1 of 'v', of which there are 2"),
    ("[{from: a, to: c, shape: v -> v, crop: {v: 3}}]", {"a": (2,)}, "map[0] (map:1): crop asks for 3 of 'v', of which there are 2"),
    ("[{from: a, to: c, shape: v -> v, pad: {v: n}}]", {"a": (2,)}, "map[0] (map:1): the size 'n' is not known; give it (sizes)"),
    ("[{from: a, to: c, shape: v -> v, pad: {v: v/4}}]", {"a": (2,)}, "map[0] (map:1): v/4 is 0.5, which is no whole number of at least 0"),
    ("[{from: a, to: c, shape: v -> v, crop: {v: v-2}}]", {"a": (2,)}, "map[0] (map:1): v-2 is 0; a length is from 1 to 2^40"),
    ("[{from: a, to: c, shape: v -> v, pad: {v: v*1e20}}]", {"a": (2,)}, "map[0] (map:1): v*1e20 is 200000000000000000000; a length is from 1 to 2^40"),
    ("[{from: a, to: c, shape: v -> v z, pad: {z: 2}}]", {"a": (2,)}, "map[0] (map:1): the size of 'z' does not follow from the shapes; give it (sizes)"),
    ("[{from: 'a.{ceil(l/2)}', to: 'c.{l}'}]", {"a.0": (2,)}, "ceil(l/2) does not grow in equal steps with l"),
    ("[{from: 'a.{l}', to: 'c.{l}'}, {from: 'b.{l}', to: 'd.{l}'}, {to: 'e.{l}', shape: '->', fill: 1}]", {"a.0": (2,), "b.0": (2,), "b.1": (2,)}, "map[2] (map:1): 'l' in 'e.{l}' is no index of 'from', no dimension of the left side, and no size that is given (sizes)"),
    ("[{from: a, to: c, multiply: sqrt(n)}]", {"a": (2,)}, "map[0] (map:1): the size 'n' in its arithmetic is not known; give it (sizes)"),
    ("[{from: a, to: c, multiply: 0}]", {"a": (2,)}, "map[0] (map:1): it multiplies or divides by 0, which loses every element; write a fill"),
    ("[{from: a, to: c, divide: 1 - 1}]", {"a": (2,)}, "map[0] (map:1): it multiplies or divides by 0, which loses every element; write a fill"),
    ("[{from: a, to: c, multiply: 1/(2-2)}]", {"a": (2,)}, "map[0] (map:1): a division by zero"),
    ("[{from: a, to: c, multiply: sqrt(1-2)}]", {"a": (2,)}, "map[0] (map:1): a root of -1"),
    ("[{from: a, to: c, multiply: 1e300*1e300}]", {"a": (2,)}, "too large"),
    ("[{from: a, to: c}, {from: b, same_as: d}]", {"a": (2,), "b": (2,)}, "map[1] (map:1): the source has no 'd'"),
    ("[{from: a, to: c}, {from: b, same_as: a}]", {"a": (2,), "b": (3,)}, "map[1] (map:1): 'b' is float32 [3], but 'a', which it must equal, is float32 [2]"),
    ("[{from: a, to: c}, {to: e, same_as: d}]", {"a": (2,)}, "map[1] (map:1): no rule makes 'd', of which the target is a copy"),
    ("[{from: a, to: c}, {from: b, to: c/d}]", {"a": (2,), "b": (2,)}, "map[1] (map:1): it makes 'c/d', but 'c' is a tensor itself; choose another name"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "shapes", "said"), CHECKPOINTS)
def test_maps_that_do_not_fit_the_checkpoint(rules: str, shapes: Shapes, said: str) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(PlanError, match=re.escape(said)):
        mapped(f"map: {rules}\n", arrays)


def test_a_given_size_that_the_names_contradict() -> None:
    arrays = {f"a.{n}": np.zeros(2, np.float32) for n in range(3)}
    text = "map: [{from: 'a.{l}', to: c, shape: e -> l e}]\n"
    with pytest.raises(
        PlanError, match=r"the size of 'l' is given as 4, but the names have 3 of it"
    ):
        mapped(text, arrays, {"l": 4})
    with pytest.raises(PlanError, match=r"no rule of the map takes 1 of 3 tensors \('a\.2'\)"):
        mapped(text, arrays, {"l": 2})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{from: a, to: b, multiply: 2}", "arithmetic is for floats, but 'a' is int32; leave multiply and add out"),
        ("{from: a, to: b, add: 1, cast: float32}", "arithmetic is for floats, but 'a' is int32"),
    ],
)  # fmt: skip
def test_arithmetic_on_integers(rule: str, said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        mapped(f"map: [{rule}]\n", {"a": np.zeros(2, np.int32)})


def test_sources_of_several_dtypes() -> None:
    arrays = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float16)}
    with pytest.raises(
        PlanError, match=r"several dtypes, float16, float32; name the one of the target \(cast\)"
    ):
        mapped("map: [{from: [a, b], to: c, shape: 'e, f -> [e | f]'}]\n", arrays)


@pytest.mark.parametrize(
    ("fill", "dtype"), [(300.0, "int8"), (np.nan, "int32"), (np.inf, "float8_e4m3fn")]
)
def test_a_fill_that_the_dtype_lacks(fill: float, dtype: str) -> None:
    rule = {"to": "b", "shape": "-> e", "fill": fill, "cast": dtype}
    said = f"{dtype} has no element {fill}; fill with one that it has"
    with pytest.raises(PlanError, match=re.escape(said)):
        mapped({"map": [{"from": "a", "to": "a"}, rule]}, {"a": np.zeros(2, np.float32)}, {"e": 2})


REVERSED: list[tuple[str, str]] = [
    ("drop: [b]\nmap: [{from: a, to: c}]", "map: the map drops 'b', which cannot be restored; take drop out of it"),
    ("map: [{from: a, to: c, shape: v -> v, crop: {v: 1}}]", "map[0] (map:1): it cannot be read backwards: its crop leaves out a part of 'v', which cannot be restored; if that part holds one number, give the number as fill"),
    ("map: [{from: a, to: c, shape: v -> v, crop: {v: 1}, fill: 0}]", "map[0] (map:1): it cannot be read backwards: 'v' is cropped, and the target does not tell its earlier length; give that as its size (sizes)"),
    ("map: [{from: a, to: c, shape: v e -> v e, crop: {v: 4}, pad: {e: 8}, fill: 7}]", "it cannot be read backwards: it has both pad and crop, and fill tells the number of the padding only"),
    ("map: [{to: c, shape: -> e, fill: 1}]", "it cannot be read backwards: its targets come from no source"),
    ("map: [{from: 'a.{l}', to: c, shape: e -> l e, pad: {l: 8}}]\nsizes: {l: 2}", "it cannot be read backwards: 'l', which counts the tensors 'a.{l}', is padded"),
    ("map: [{from: a, to: c, shape: e -> r e}]", "it cannot be read backwards: it repeats elements along 'r', and nothing says that all copies are equal"),
    ("map: [{from: a, to: c, shape: v -> v, pad: {v: 8}}]", "'v' is padded, and the target does not tell its earlier length; give that as its size (sizes)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REVERSED)
def test_what_cannot_be_read_backwards(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        map_of(f"{text}\n", None, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a " * 3000 + "-> a", "a shape of 6004 characters; write at most 4000"),
        ("(" * 20 + "a" + ")" * 20 + " -> a", "are nested deeper than 8 levels"),
    ],
)
def test_shapes_that_are_too_large(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_shape(text)


def test_arithmetic_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="arithmetic of 401 characters; write at most 200"):
        parse_expression("1" + "+1" * 200)


def test_hostile_maps_are_small(tmp_path: Path) -> None:
    """A kilobyte of text makes no petabyte without a word: repeats and boxes are bounded, and the size of a pad is planned."""
    source = {"a": np.zeros(2, np.float32)}
    with pytest.raises(PlanError, match="would repeat it more than 4,096 times"):
        mapped("map: [{from: a, to: b, shape: e -> r e}]\n", source, {"r": 5000})
    many, more = (" | ".join([name] * 100) for name in "ab")
    with pytest.raises(
        PlanError, match="its brackets stand for more than 4,096 boxes of one tensor"
    ):
        mapped(
            f"map: [{{from: a, to: b, shape: 'e -> [{many}] [{more}]'}}]\n",
            source,
            {"a": 1, "b": 1},
        )
    choices = " ".join(f"[a{n} | b{n}]" for n in range(40))
    of_one = {f"{name}{n}": 1 for name in "ab" for n in range(40)}
    with pytest.raises(PlanError, match="its brackets stand for more than 4,096 boxes"):
        mapped(f"map: [{{from: a, to: b, shape: 'e -> ({choices})'}}]\n", source, of_one)
    for rule, sizes in (
        ("{to: 'b.{i}', shape: -> e, fill: 0}", {"i": 1 << 40, "e": 1}),
        ("{from: a, to: 'b.{i}.{j}', shape: '(i j) -> 1'}", {"i": 2_000_001, "j": 1}),
    ):
        arrays = {} if "from" not in rule else {"a": np.zeros(2_000_001, np.int8)}
        with pytest.raises(PlanError, match="makes more than 2,000,000 pieces"):
            mapped(f"map: [{rule}]\n", arrays, sizes)
    reshard.save(tmp_path / "a", source)
    rule = {"map": [{"from": "a", "to": "b", "shape": "e -> e", "pad": {"e": 1 << 40}}]}
    plan = reshard.plan(tmp_path / "a", map=rule)
    assert plan.written_bytes >= 1 << 42
    with pytest.raises(StorageError, match="has only"):
        reshard.convert(tmp_path / "a", tmp_path / "b", map=rule, to="safetensors")
    assert not (tmp_path / "b").exists()


def test_a_map_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        reshard.MissingError, match=r"^map file '.*none.yaml' cannot be read: No such file"
    ):
        map_of(tmp_path / "none.yaml")
    with pytest.raises(
        PlanError,
        match="map is 3; expected the path of a map file, or its content as a mapping or text",
    ):
        map_of(3)


def test_a_map_of_a_file_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").write_text("map:\n- {from: a, to: b}\n- {from: c, to: d, shape: e}\n")
    with pytest.raises(LayoutError, match=r"llama.yaml:3: map\[1\].shape: 'e' must have one arrow"):
        map_of(tmp_path / "llama.yaml")


LONG: list[tuple[object, str]] = [
    (f"map: [{{from: a, to: b}}]\n{'#' * 262_144}\n", "map: expected a map of at most 262,144 characters, found 262,169; write one rule with an index, such as 'layers.{l}.w', for names that differ in a number, or several maps"),
    ({"map": [{"from": "a", "to": "b"}], "about": "x" * 262_144}, "map: expected a map of at most 262,144 characters, found 262,"),
    ({"map": [{"to": "b", "same_as": "c"}] * 10_001}, "map: expected a map of at most 262,144 characters"),
    ({"map": [{"map": [{"from": "a", "to": "b"}] * 5000}, {"under": "x", "map": [{"from": "a", "to": "b"}] * 5001}]}, "map: map: expected at most 10,000 rules, found more; write one rule with an index, such as 'layers.{l}.w', for names that differ in a number, or several maps"),
    ({"map": [{"from": "a", "to": "b" * 4097}]}, f"map: map[0].to: the name '{'b' * 40}'… has 4,097 characters; write at most 4,096"),
    ({"map": [{"under": "a" * 4000, "map": [{"from": "b" * 97, "to": "b"}]}]}, "has 4,097 characters; write at most 4,096"),
    ({"map": [{"from": "a{i}1{j}", "to": "b"}]}, "map: map[0].from: 'a{i}1{j}' has two indices side by side, whose digits cannot be told apart"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), LONG, ids=range(len(LONG)))
def test_maps_that_are_too_long(given: object, said: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(said)):
        map_of(given)


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        ({"to": "c.{l}", "shape": "-> e", "fill": 0}, {"l": 1 << 40, "e": 2}),
        ({"to": "c.{l}.{k}", "shape": "-> e", "fill": 0}, {"l": 1 << 20, "k": 1 << 20, "e": 2}),
    ],
)
def test_more_pieces_than_a_map_may_make(
    tmp_path: Path, rule: dict[str, object], sizes: dict[str, int]
) -> None:
    reshard.save(tmp_path / "a", {"w": np.ones(2, np.float32)})
    said = r"map\[1\] \(map\): the map makes more than 2,000,000 pieces; write it in several maps"
    with pytest.raises(PlanError, match=said):
        reshard.plan(tmp_path / "a", map={"map": [{"from": "w", "to": "w"}, rule]}, sizes=sizes)


def test_a_mistyped_recipe_is_told_the_nearest(tmp_path: Path) -> None:
    reshard.save(tmp_path / "a", {"w": np.zeros(2, np.float32)})
    for given, said in (
        ("maxtext-lama3.1", "map 'maxtext-lama3.1' is no recipe, and no file of that name is here; the nearest recipe is 'maxtext-llama3.1'; reshard recipes lists them"),
        ("zzzzzz", "map 'zzzzzz' is no recipe, and no file of that name is here; reshard recipes lists them"),
        ("none.yaml", "map file 'none.yaml' cannot be read: No such file or directory"),
    ):  # fmt: skip
        with pytest.raises(MissingError) as refused:
            reshard.plan(tmp_path / "a", map=given)
        assert str(refused.value) == said
