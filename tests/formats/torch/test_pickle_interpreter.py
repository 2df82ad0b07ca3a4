"""Pickles are read without being run: plain values as Python reads them, names as records, and everything else is refused."""

from __future__ import annotations

import gc
import os
import pickle
import pickletools
import re
import struct
import sys
from argparse import Namespace
from collections import Counter, defaultdict, namedtuple
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.torch import pickle_interpreter, pickle_machine
from reshard.formats.torch.pickle_interpreter import UnknownNameError, read_pickle
from reshard.formats.torch.pickle_machine import (
    Built,
    Name,
    Persistent,
    Table,
    expect_built,
    expect_node,
    fields_of,
)
from reshard.formats.torch.write_archive import encode_pickle
from tests.pickled import Call, Global, New, Ordered, Reference, pickled

NAMES = {"a.B": "B", "collections.OrderedDict": "OrderedDict"}
B = Global("a", "B")

texts = st.text(st.characters(exclude_categories=()), max_size=300)
"""Lone surrogates among them, as Python's pickle writes them."""

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.tuples(inner, inner, inner, inner)
    | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def value_of(node: Any) -> Any:
    """Plain nodes as Python values."""
    if isinstance(node, Table):
        return {key: value_of(child) for key, child in node.pairs()}
    if isinstance(node, list | tuple):
        return type(node)(map(value_of, node))
    return node


def refusal(data: bytes) -> str:
    with pytest.raises(FormatError) as error:
        read_pickle(data, NAMES, "it")
    return str(error.value)


@given(plain, st.integers(2, 5))
def test_plain_values_are_what_python_reads(value: Any, protocol: int) -> None:
    assert value_of(read_pickle(pickle.dumps(value, protocol), {}, "it")) == value


@given(plain)
def test_the_writer_writes_what_python_reads(value: Any) -> None:
    assert pickle.loads(encode_pickle(value)) == value
    assert value_of(read_pickle(encode_pickle(value), {}, "it")) == value


def test_the_writer_writes_many_values() -> None:
    """Several batches of items, numbers of the memo of more than a byte, and integers of every size."""
    value = {
        "texts": [f"text {number % 2500}" for number in range(5000)],
        "numbers": [sign * 2**power for power in range(70) for sign in (-1, 1)],
    }
    assert pickle.loads(encode_pickle(value)) == value


@given(plain)
def test_the_writer_by_hand_writes_what_python_reads(value: Any) -> None:
    assert pickle.loads(pickled(value)) == value
    assert value_of(read_pickle(pickled(value), {}, "it")) == value


def test_objects_are_records() -> None:
    made = read_pickle(
        pickled(New(B, {"x": Call(B, (1, Reference(("s", 2)))), "o": Ordered({"k": 3})})),
        NAMES,
        "it",
    )
    assert (made.name, made.arguments) == ("B", ())
    fields = fields_of(made, "it")
    assert fields["x"].arguments == (1, Persistent(("s", 2)))
    assert fields["o"].table.pairs() == [("k", 3)]
    assert read_pickle(pickled(B), NAMES, "it") == Name("B")
    assert (repr(made), repr(made.state)) == ("B(…)", "Table of 2")


class Slotted:
    """An object whose class takes arguments by name, and which has slots."""

    __slots__ = ("x",)

    def __getnewargs_ex__(self) -> Any:
        return (1,), {"y": 2}


class Items(list[int]):
    """A kind of list."""


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_objects_of_any_class_are_records(protocol: int) -> None:
    slotted = Slotted()
    slotted.x = 5
    value = [
        Namespace(lr=0.1), defaultdict(list, a=[1]), Counter("aab"), PurePosixPath("x"), Items([1, 2]), Pair(3, 4), slotted, Ellipsis,
        {1}, frozenset({2}), b"bytes", bytearray(b"more"), 2**3000, Fraction(1, 3),
    ]  # fmt: skip
    found = read_pickle(pickle.dumps(value, protocol), {}, "it")
    built = {one.name: one for one in found if isinstance(one, Built)}
    assert value_of(built["argparse.Namespace"].state) == {"lr": 0.1}
    assert value_of(built["collections.defaultdict"].table) == {"a": [1]}
    assert value_of(built["collections.Counter"].arguments[0]) == {"a": 2, "b": 1}
    assert built[f"{__name__}.Items"].items == [1, 2]
    assert built[f"{__name__}.Pair"].arguments == (3, 4)
    assert 2**3000 in found
    if protocol > 2:
        assert b"bytes" in found
    if protocol > 3:
        assert (built["set"].items, built["frozenset"].items) == ([1], [2])
        made = built[f"{__name__}.Slotted"]
        assert (made.arguments[0], value_of(made.arguments[1])) == ((1,), {"y": 2})
        assert value_of(made.state[1]) == {"x": 5}


def test_opcodes_that_python_reads_and_does_not_write() -> None:
    made = P2 + b"](ca\nB\nK\1K\2oa(K\3ia\nC\na(K\x042eN0(K\5K\x061."
    first, second, *numbers = read_pickle(made, NAMES, "it")
    assert (first.name, first.arguments) == ("B", (1, 2))
    assert (second.name, second.arguments) == ("a.C", (3,))
    assert numbers == [4, 4]
    assert "takes more from its stack than is there" in refusal(P2 + b"(o.")


def test_what_a_call_returns_may_be_called() -> None:
    getter = P2 + b"cbuiltins\ngetattr\nca\nB\nX\1\0\0\0x\x86R(K\1tR."
    made = read_pickle(getter, NAMES, "it")
    called, given = made.arguments
    assert (made.name, called.name, given) == ("what a call returned", "builtins.getattr", (1,))
    assert "calls 1 with ()" in refusal(P2 + b"K\1)R.")


class Poison:
    """Runs a command where a pickle of it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_poisoned_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps({"a": Poison(f"touch {canary}")}, protocol)
    name = f"{os.system.__module__}.system"
    poison = read_pickle(data, NAMES, "it").pairs()[0][1]
    assert (poison.name, poison.arguments) == (name, (f"touch {canary}",))
    with pytest.raises(UnknownNameError) as error:
        read_pickle(data, NAMES, "it", is_closed=True)
    assert str(error.value) == (
        f"it names '{name}', which is not on the list of names that are read; nothing of it was run. Where you trust it, load it with "
        "the program that wrote it, and save plain tensors, numbers and text"
    )
    assert not canary.exists()
    pickle.loads(data)
    assert canary.exists()


def test_nothing_is_imported_and_no_attribute_is_set() -> None:
    data = pickled([Global("this", "s"), New(B, {"x": 1})])
    assert "this" not in sys.modules
    found = read_pickle(data, {"this.s": "s", **NAMES}, "it")
    assert "this" not in sys.modules
    assert found[0] == Name("s")
    assert not hasattr(Built, "x")


def test_no_format_imports_the_module_that_runs_pickles() -> None:
    files = list(Path(pickle_interpreter.__file__).parents[1].rglob("*.py"))
    assert len(files) > 50
    runs = re.compile(r"^\s*(import pickle|from pickle import)\b", re.MULTILINE)
    assert [path for path in files if runs.search(path.read_text("utf-8"))] == []


P2 = b"\x80\x02"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it does not begin as a pickle does (at byte 0 of 0)"),
        (b"(lp0\n.", "it does not begin as a pickle does (at byte 0 of 6)"),
        (P2, "it is cut short, or takes more from its stack than is there (at byte 2 of 2)"),
        (P2 + b"X\xff\0\0\0a", "it is cut short (at byte 262 of 8)"),
        (P2 + b"X\xff", "it is cut short, or takes more from its stack than is there (at byte 3 of 4)"),
        (P2 + b"X\1\0\0\0\xff.", "it holds text that is not UTF-8 (at byte 8 of 9)"),
        (P2 + b"cos", "it holds a name without an end (at byte 3 of 5)"),
        (P2 + b"h\0.", "it is cut short, or takes more from its stack than is there (at byte 4 of 5)"),
        (P2 + b"Nq\1.", "it keeps a value as number 1 while it has 0 (at byte 5 of 6)"),
        (P2 + b"N(\x85.", "it takes more from its stack than is there (at byte 5 of 6)"),
        (P2 + b"](Na.", "it does not end where its one value is complete (at byte 7 of 7)"),
        (P2 + b"](a.", "it takes more from its stack than is there (at byte 5 of 6)"),
        (P2 + b"NNa.", "it appends to None, which is no list (at byte 5 of 6)"),
        (P2 + b"}(Nu.", "it sets a key without a value (at byte 6 of 7)"),
        (P2 + b"](NNu.", "it sets items of [], which is no dict (at byte 7 of 8)"),
        (P2 + b"NN\x93.", "it names None of None, which are not both text (at byte 5 of 6)"),
        (P2 + b"N)R.", "it calls None with () (at byte 5 of 6)"),
        (P2 + b"ca\nB\nNR.", "it calls Name(text='B') with None (at byte 9 of 10)"),
        (P2 + b"ca\nB\nNb.", "it gives a state to Name(text='B'), which takes none (at byte 9 of 10)"),
        (P2 + b"NN.", "it does not end where its one value is complete (at byte 5 of 5)"),
        (P2 + b"N.N", "it does not end where its one value is complete (at byte 4 of 5)"),
        (P2 + b"\x95" + struct.pack("<Q", 99) + b"N.", "it is cut short (at byte 11 of 13)"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_damage(data: bytes, said: str) -> None:
    assert refusal(data) == (
        f"{said}; expected a pickle as torch writes it, so restore it from a copy"
    )


def test_a_second_state_is_damage() -> None:
    assert "gives a state to B(…), which takes none" in refusal(P2 + b"ca\nB\n)\x81)b)b.")


@pytest.mark.parametrize("opcode", ["\x82", "P", "V", "S", "I", "F", "L"])
def test_other_opcodes_are_refused(opcode: str) -> None:
    assert refusal(P2 + opcode.encode("latin-1") + b"\0\0\0\0\0\0\0\0") == (
        f"it has the opcode {ord(opcode):#04x} at byte 2, which is not read; expected a pickle as torch writes it"
    )


def test_other_protocols_are_refused() -> None:
    for version in (1, 6):
        assert refusal(b"\x80" + bytes([version]) + b"N.") == (
            f"it is a pickle of protocol {version}; expected 2 to 5, as torch writes them"
        )


def test_only_opcodes_of_the_list_are_known() -> None:
    known = {chr(code) for code in pickle_interpreter._OPCODES} | {"."}
    named = {op.name for op in pickletools.opcodes if op.code in known}
    assert len(named) == len(known)
    assert not named & {"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER"}


def test_a_page_in_place_of_it_is_named() -> None:
    assert "is a web page" in refusal(b"<!DOCTYPE html><html>")


@pytest.mark.parametrize(
    ("name", "limit", "data", "said"),
    [
        ("MAX_PICKLE_BYTES", 3, P2 + b"N.", "it has 4 bytes; at most 3 of a pickle are read"),
        ("MAX_PICKLE_OPCODES", 4, P2 + b"NNNNNN", "it has more than 4 opcodes"),
        ("MAX_PICKLE_VALUES", 2, P2 + b"]]]", "it has more than 2 values"),
        ("MAX_PICKLE_VALUES", 2, P2 + b"N\x94\x94\x94", "it has more than 2 values in its memo"),
        ("MAX_PICKLE_STACK", 2, P2 + b"NNN", "it has more than 2 values on its stack"),
        ("MAX_PICKLE_STACK", 2, P2 + b"(((", "it has more than 2 marks"),
        (
            "MAX_INTEGER_BYTES",
            2,
            P2 + b"\x8b\3\0\0\0abc.",
            "it has more than 2 bytes in one integer",
        ),
        (
            "MAX_NAME_CHARACTERS",
            2,
            P2 + b"X\2\0\0\0abX\1\0\0\0c\x93.",
            "it has more than 2 characters in one name",
        ),
        ("MAX_VALUE_CHARACTERS", 2, P2 + b"X\3\0\0\0abc.", "it has more than 2 bytes in one text"),
    ],
)
def test_what_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int, data: bytes, said: str
) -> None:
    for module in (pickle_interpreter, pickle_machine):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, limit)
    assert refusal(data).startswith(said)


def test_deep_and_circular_values_end_nothing() -> None:
    deep = read_pickle(P2 + b")" + b"\x85" * 1_000_000 + b".", {}, "it")
    referred = read_pickle(P2 + b"N" + b"Q" * 1_000_000 + b".", {}, "it")
    circle = read_pickle(P2 + b"]q\0h\0a.", {}, "it")
    assert circle[0] is circle
    for value in (deep, referred, circle):
        with pytest.raises(CorruptError, match="should be a B, but is"):
            expect_built(value, "B", "the value", "it")
        with pytest.raises(CorruptError, match="should be a dict, but is"):
            expect_node(value, Table, "the value", "it")
    del deep, referred, circle
    gc.collect()


def test_fields_have_names() -> None:
    made = read_pickle(pickled(New(B, {1: 2})), NAMES, "it")
    with pytest.raises(CorruptError) as error:
        fields_of(made, "it")
    assert str(error.value) == "it: a name in the state of a B should be a str, but is 1"


@given(plain, st.integers(2, 5), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.integers(0, 400))  # fmt: skip
def test_damaged_pickles_are_answered_or_refused(
    value: Any, protocol: int, flips: list[tuple[int, int]], end: int
) -> None:
    data = bytearray(pickle.dumps({"v": value, "w": [value]}, protocol))
    for at, byte in flips:
        data[at % len(data)] = byte
    for cut in (bytes(data), bytes(data[:end])):
        try:
            read_pickle(cut, NAMES, "it")
        except ReshardError as error:
            assert str(error)


@given(st.lists(st.sampled_from([bytes([code]) for code in pickle_interpreter._OPCODES] + [b"\0", b"\1", b"ca\nB\n"]), max_size=60))  # fmt: skip
def test_any_program_is_answered_or_refused(parts: list[bytes]) -> None:
    try:
        read_pickle(P2 + b"".join(parts) + b".", NAMES, "it")
    except ReshardError as error:
        assert str(error)
