"""Dotted paths of what hangs on a root."""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from reshard import VariableError
from reshard.variables.lazy.object_paths import CACHED_ATTRIBUTES, object_paths


class Leaf:
    pass


def paths(root: object) -> list[str]:
    return list(object_paths(root, lambda node: isinstance(node, Leaf)))


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@dataclass
class Block:
    a: Leaf = field(default_factory=Leaf)
    lst: list[Any] = field(default_factory=lambda: [Leaf(), {"kernel": Leaf()}])


@dataclass(frozen=True, slots=True)
class Frozen:
    kernel: Leaf
    bias: Leaf


class Base:
    __slots__ = ("__hidden", "first", "unset")

    def __init__(self) -> None:
        self.first = Leaf()
        self.__hidden = Leaf()


class Slotted(Base):
    __slots__ = ("__dict__", "second")

    def __init__(self) -> None:
        super().__init__()
        self.second = Leaf()
        self.third = Leaf()


class Pair(NamedTuple):
    left: Leaf
    right: Leaf


class Lazy:
    @property
    def kernel(self) -> Leaf:
        raise AssertionError("a property was run")


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (Thing(d1=Thing(kernel=Leaf(), bias=Leaf())), ["d1.kernel", "d1.bias"]),
        (Thing(blk=Block()), ["blk.a", "blk.lst.0", "blk.lst.1.kernel"]),
        (Thing(blk=Thing(lst=[Thing(kernel=Leaf())])), ["blk.lst.0.kernel"]),
        (Frozen(Leaf(), Leaf()), ["kernel", "bias"]),
        (Slotted(), ["__hidden", "first", "second", "third"]),
        (Pair(Leaf(), Leaf()), ["left", "right"]),
        ({"z": Leaf(), 3: (Leaf(), [Leaf()])}, ["z", "3.0", "3.1.0"]),
        (OrderedDict(b=deque([Leaf()]), a=Leaf()), ["b.0", "a"]),
        (Leaf(), [""]),
        ([Leaf(), Leaf()], ["0", "1"]),
        (Lazy(), []),
        (Thing(s={Leaf()}, f=lambda: Leaf(), t=Leaf, m=sys, x=np.arange(3), n=None, i=3), []),
    ],
)
def test_paths(root: object, expected: list[str]) -> None:
    assert sorted(paths(root)) == sorted(expected)


def test_they_come_in_the_order_in_which_attributes_were_set() -> None:
    assert paths(Thing(z=Leaf(), a=[Leaf(), Leaf()], b=Leaf())) == ["z", "a.0", "a.1", "b"]


def test_a_shared_object_has_its_first_path() -> None:
    shared = Thing(kernel=Leaf())
    assert paths(Thing(encoder=shared, decoder=shared, tied=shared.kernel)) == ["encoder.kernel"]


def test_cycles_end() -> None:
    root = Thing(kernel=Leaf())
    root.me, root.list = root, [root]
    root.list.append(root.list)
    assert paths(root) == ["kernel"]


def test_caches_are_skipped() -> None:
    leaf = Leaf()
    caches = {name: [leaf] for name in sorted(CACHED_ATTRIBUTES)}
    assert paths(Thing(**caches, d1=Thing(**caches, kernel=leaf))) == ["d1.kernel"]
    assert {
        "_self_tracked_trackables",
        "_trainable_weights",
        "_non_trainable_weights",
    } < CACHED_ATTRIBUTES


def test_a_long_chain_needs_no_stack() -> None:
    node = Thing(kernel=Leaf())
    for _ in range(5000):
        node = Thing(n=node)
    assert paths(node) == [".".join(["n"] * 5000 + ["kernel"])]


class Answering:
    """Answers any attribute, as a mock or a lazy module does, and computes something to do so."""

    def __init__(self) -> None:
        self.kernel = Leaf()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class AnsweringSlots:
    __slots__ = ("first", "unset")
    __getattr__ = Answering.__getattr__

    def __init__(self) -> None:
        self.first = Leaf()


def test_objects_are_not_asked_for_what_they_do_not_hold() -> None:
    assert paths(Thing(a=Answering())) == ["a.kernel"]
    assert paths(AnsweringSlots()) == ["first"]


def test_weak_proxies_are_no_paths() -> None:
    root, gone = Thing(kernel=Leaf()), Thing()
    root.child = Thing(parent=weakref.proxy(root), leaf=weakref.proxy(root.kernel), bias=Leaf())
    root.gone = weakref.proxy(gone)
    del gone
    assert paths(root) == ["kernel", "child.bias"]
    assert paths(Thing(first=weakref.proxy(root.kernel), root=root)) == [
        "root.kernel",
        "root.child.bias",
    ]


def test_two_variables_of_one_path_are_refused() -> None:
    root = {"a.b": Leaf(), "a": {"b": Leaf()}}
    with pytest.raises(VariableError, match=r"two variables have the path 'a\.b'.*rename a key"):
        paths(root)
