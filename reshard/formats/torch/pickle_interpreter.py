"""Reads a pickle without running it: no module is imported, no class is looked up, and nothing is called.

A pickle is a program for a small machine with a stack (``pickletools`` in Python's library describes its opcodes). A name
that the program would import is a ``Name`` here; an object that it would build, or a call, is a ``Built``. The opcodes that
Python writes in protocols 2 to 5 are known.

A pickle may be from a stranger, so that the bytes, the opcodes, the values, the stack and the length of a text are limited. Nothing
here is recursive. A result may be deep or contain itself: code that walks it must limit its steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from reshard.errors import FormatError, shorten
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.limits import (
    MAX_INTEGER_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_PICKLE_BYTES,
    MAX_PICKLE_OPCODES,
    MAX_PICKLE_STACK,
    MAX_PICKLE_VALUES,
)
from reshard.formats.torch.pickle_machine import (
    ANONYMOUS,
    FROZENSET,
    SET,
    Built,
    Machine,
    Name,
    Persistent,
    Table,
)

_U16, _U32, _I32, _U64 = map(struct.Struct, ("<H", "<I", "<i", "<Q"))
_F64 = struct.Struct(">d")

_STOP = ord(".")


class UnknownNameError(FormatError):
    """A pickle that uses a name that is not on the list."""


def read_pickle(
    data: bytes, names: Mapping[str, str], where: str, *, is_closed: bool = False
) -> Any:
    """The object that a pickle describes, as nodes.

    Args:
        names: the text of a ``Name``, by module and name with a dot between; any other name is its own text.
        where: the file, for messages.
        is_closed: True refuses any other name: in a file of fully known content it stands for something that would be missed.

    Raises:
        UnknownNameError: it uses another name, which is refused.
        CorruptError: it is cut short or makes no sense.
        FormatError: it uses an opcode that is not known, or is too large.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise FormatError(
            f"{where} has {len(data):,} bytes; at most {MAX_PICKLE_BYTES:,} of a pickle are read"
        )
    machine = Machine(data, names, where, is_closed=is_closed)
    if data[:1] != b"\x80":
        refuse_stand_in(data[:START_BYTES], where)
        raise machine.damaged("does not begin as a pickle does")
    _run(machine)
    return machine.result()


def _run(machine: Machine) -> None:
    data, opcodes = machine.data, _OPCODES
    try:
        for _ in range(MAX_PICKLE_OPCODES):
            opcode = data[machine.at]
            machine.at += 1
            if opcode == _STOP:
                return
            opcodes[opcode](machine)
    except (IndexError, struct.error):
        raise machine.damaged("is cut short, or takes more from its stack than is there") from None
    except KeyError:
        raise FormatError(
            f"{machine.where} has the opcode {data[machine.at - 1]:#04x} at byte {machine.at - 1:,}, which is not read; expected a pickle "
            "as torch writes it"
        ) from None
    raise machine.too_large(f"{MAX_PICKLE_OPCODES:,} opcodes")


def _protocol(m: Machine) -> None:
    version = m.take(1)[0]
    if not 2 <= version <= 5:
        raise FormatError(
            f"{m.where} is a pickle of protocol {version}; expected 2 to 5, as torch writes them"
        )


def _frame(m: Machine) -> None:
    if m.number(_U64) > len(m.data) - m.at:
        raise m.damaged("is cut short")


def _mark(m: Machine) -> None:
    if len(m.marks) >= MAX_PICKLE_STACK:
        raise m.too_large(f"{MAX_PICKLE_STACK:,} marks")
    m.marks.append(len(m.stack))


def _memoize(m: Machine) -> None:
    if len(m.memo) >= MAX_PICKLE_VALUES:
        raise m.too_large(f"{MAX_PICKLE_VALUES:,} values in its memo")
    m.memo.append(m.stack[-1])


def _put(m: Machine, number: int) -> None:
    # Every writer of pickles numbers what it keeps from 0 on, so that the memo can be a list.
    if number == len(m.memo):
        _memoize(m)
    elif number < len(m.memo):
        m.memo[number] = m.stack[-1]
    else:
        raise m.damaged(f"keeps a value as number {number:,} while it has {len(m.memo):,}")


def _get(m: Machine, number: int) -> None:
    m.push_known(m.memo[number])


def _tuple(m: Machine, count: int) -> None:
    start = len(m.stack) - count
    if start < (m.marks[-1] if m.marks else 0):
        raise m.damaged("takes more from its stack than is there")
    taken = tuple(m.stack[start:])
    del m.stack[start:]
    m.push(taken)


def _append(m: Machine, values: list[Any]) -> None:
    target = m.stack[-1]
    if type(target) is Built:  # a kind of list, or a set
        target.items = target.items or []
        target = target.items
    if type(target) is not list:
        raise m.damaged(f"appends to {shorten(target)}, which is no list")
    target.extend(values)


def _set_items(m: Machine, entries: list[Any]) -> None:
    target = m.stack[-1]
    if len(entries) % 2:
        raise m.damaged("sets a key without a value")
    if type(target) is Built:
        target.table = target.table or Table()
        target = target.table
    if type(target) is not Table:
        raise m.damaged(f"sets items of {shorten(target)}, which is no dict")
    target.entries.extend(entries)


def _set_item(m: Machine) -> None:
    value = m.pop()
    _set_items(m, [m.pop(), value])


def _name(m: Machine, module: Any, name: Any) -> None:
    if type(module) is not str or type(name) is not str:
        raise m.damaged(f"names {shorten(name)} of {shorten(module)}, which are not both text")
    if len(module) + len(name) > MAX_NAME_CHARACTERS:
        raise m.too_large(f"{MAX_NAME_CHARACTERS:,} characters in one name")
    full = f"{module}.{name}"
    known = m.names.get(full)
    if known is None and m.is_closed:
        raise UnknownNameError(
            f"{m.where} names {shorten(full)}, which is not on the list of names that are read; nothing of it was run. Where you trust it, "
            "load it with the program that wrote it, and save plain tensors, numbers and text"
        )
    m.push(Name(known or full))


def _stack_global(m: Machine) -> None:
    name = m.pop()
    _name(m, m.pop(), name)


def _call(m: Machine, called: Any, arguments: Any, named: Any = None) -> None:
    """``named``: arguments by their names."""
    if type(called) not in (Name, Built) or type(arguments) is not tuple:
        raise m.damaged(f"calls {shorten(called)} with {shorten(arguments)}")
    # Not joined: a tuple that is shared may be long, and each call of three bytes would copy it.
    given = arguments if named is None else (arguments, named)
    if type(called) is Name:
        m.push(Built(called.text, given))
    else:  # what getattr gives, for example
        m.push(Built(ANONYMOUS, (called, given)))


def _make(m: Machine) -> None:
    arguments = m.pop()
    _call(m, m.pop(), arguments)


def _make_with_names(m: Machine) -> None:
    named, arguments = m.pop(), m.pop()
    _call(m, m.pop(), arguments, named)


def _make_of_class(m: Machine) -> None:
    taken = m.since_mark()
    _call(m, taken[0], tuple(taken[1:]))


def _make_of_name(m: Machine) -> None:
    _name(m, m.line(), m.line())
    name = m.pop()
    _call(m, name, tuple(m.since_mark()))


def _set(m: Machine, name: str, items: list[Any]) -> None:
    made = Built(name, ())
    made.items = items
    m.push(made)


def _duplicate(m: Machine) -> None:
    m.push_known(m.stack[-1])


def _build(m: Machine) -> None:
    state = m.pop()
    target = m.stack[-1]
    if type(target) is not Built or target.state is not None:
        raise m.damaged(f"gives a state to {shorten(target)}, which takes none")
    target.state = state


def _long(m: Machine, nbytes: int) -> None:
    # Writing a number of a million bits takes Python seconds.
    if nbytes > MAX_INTEGER_BYTES:
        raise m.too_large(f"{MAX_INTEGER_BYTES:,} bytes in one integer")
    m.push(int.from_bytes(m.take(nbytes), "little", signed=True))


_OPCODES: Mapping[int, Callable[[Machine], Any]] = {
    ord(opcode): action
    for opcode, action in {
        "\x80": _protocol,
        "\x95": _frame,
        "(": _mark,
        "\x94": _memoize,
        "q": lambda m: _put(m, m.take(1)[0]),
        "r": lambda m: _put(m, m.number(_U32)),
        "h": lambda m: _get(m, m.take(1)[0]),
        "j": lambda m: _get(m, m.number(_U32)),
        "N": lambda m: m.push_known(None),
        "\x88": lambda m: m.push_known(True),
        "\x89": lambda m: m.push_known(False),
        "K": lambda m: m.push(m.take(1)[0]),
        "M": lambda m: m.push(m.number(_U16)),
        "J": lambda m: m.push(m.number(_I32)),
        "\x8a": lambda m: _long(m, m.take(1)[0]),
        "\x8b": lambda m: _long(m, m.number(_U32)),
        "G": lambda m: m.push(m.number(_F64)),
        "\x8c": lambda m: m.push(m.text(m.take(1)[0])),
        "X": lambda m: m.push(m.text(m.number(_U32))),
        "\x8d": lambda m: m.push(m.text(m.number(_U64))),
        "C": lambda m: m.push(m.take(m.take(1)[0])),
        "B": lambda m: m.push(m.take(m.number(_U32))),
        "\x8e": lambda m: m.push(m.take(m.number(_U64))),
        "\x96": lambda m: m.push(m.take(m.number(_U64))),
        "]": lambda m: m.push([]),
        "}": lambda m: m.push(Table()),
        ")": lambda m: m.push_known(()),
        "t": lambda m: m.push(tuple(m.since_mark())),
        "\x85": lambda m: _tuple(m, 1),
        "\x86": lambda m: _tuple(m, 2),
        "\x87": lambda m: _tuple(m, 3),
        "\x8f": lambda m: _set(m, SET, []),
        "\x91": lambda m: _set(m, FROZENSET, m.since_mark()),
        "\x90": lambda m: _append(m, m.since_mark()),
        "0": lambda m: m.pop(),
        "1": lambda m: m.since_mark(),
        "2": _duplicate,
        "a": lambda m: _append(m, [m.pop()]),
        "e": lambda m: _append(m, m.since_mark()),
        "s": _set_item,
        "u": lambda m: _set_items(m, m.since_mark()),
        "c": lambda m: _name(m, m.line(), m.line()),
        "\x93": _stack_global,
        "R": _make,
        "\x81": _make,
        "\x92": _make_with_names,
        "o": _make_of_class,
        "i": _make_of_name,
        "b": _build,
        "Q": lambda m: m.push(Persistent(m.pop())),
    }.items()
}
"""The action of each opcode; STOP ends the program."""
