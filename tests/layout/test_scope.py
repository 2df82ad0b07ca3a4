"""The scope of a layout map: per thread, nested, restored."""

from __future__ import annotations

import threading

import pytest

import reshard
from reshard import DeviceMesh, LayoutError, LayoutMap, layout_map_scope
from reshard.layout.layout_map import current_layout_map


def test_a_scope_counts_inside_and_is_left_behind() -> None:
    layouts = LayoutMap()
    assert current_layout_map() is None
    with layouts.scope() as entered:
        assert entered is layouts
        assert current_layout_map() is layouts
    assert current_layout_map() is None


def test_both_ways_to_write_it_are_the_same() -> None:
    layouts = LayoutMap()
    with layout_map_scope(layouts):
        assert current_layout_map() is layouts
    assert reshard.layout_map_scope is layout_map_scope


def test_the_innermost_scope_counts() -> None:
    outer, inner = LayoutMap(), LayoutMap()
    with outer.scope():
        with inner.scope():
            assert current_layout_map() is inner
            with outer.scope():
                assert current_layout_map() is outer
            assert current_layout_map() is inner
        assert current_layout_map() is outer


def test_an_exception_restores_the_scope_before() -> None:
    outer, inner = LayoutMap(), LayoutMap()
    with outer.scope():
        with pytest.raises(ZeroDivisionError), inner.scope():
            _ = 1 / 0
        assert current_layout_map() is outer


def test_a_thread_does_not_see_the_scope_of_another() -> None:
    mine, theirs = LayoutMap(), LayoutMap()
    seen: list[LayoutMap | None] = []
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(current_layout_map())
        with theirs.scope():
            seen.append(current_layout_map())
            entered.set()
            leave.wait(60)
        seen.append(current_layout_map())

    with mine.scope():
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        assert current_layout_map() is mine
        leave.set()
        thread.join()
    assert seen == [None, theirs, None]


@pytest.mark.parametrize("wrong", [None, {}, LayoutMap])
def test_only_a_layout_map_has_a_scope(wrong: object) -> None:
    with pytest.raises(LayoutError, match=r"a scope needs a LayoutMap, not .*; make one with"):
        layout_map_scope(wrong).__enter__()
    assert current_layout_map() is None


def test_the_default_mesh_is_that_of_the_map() -> None:
    mesh = DeviceMesh((8,), ("model",))
    assert LayoutMap(mesh).get_default_mesh() is mesh
    assert LayoutMap().get_default_mesh() is None
