from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.measure import Measurement

from reshard.cli.tables import Name, broken, cap_note, capped, fit, table, warning
from tests.cli.show import console, lines, show, text_of


def test_cells_are_never_markup_nor_control_characters() -> None:
    made = table("", ("tensor", ">n"), [(Name("a[bold]b\x1b[2J"), "[red]1\x07")])
    text = show([made, warning("[link]x\x1b")])
    assert "a[bold]b\\x1b[2J" in text
    assert "[red]1\\x07" in text
    assert "warning: [link]x\\x1b" in text
    assert "\x1b" not in text


def test_a_terminal_gets_no_escape_from_a_name() -> None:
    target = console(80, colours=True)
    target.print(table("", ("tensor",), [(Name("\x1b]8;;http://evil\x07x"),)]))
    assert "]8;;http://evil\x07" not in text_of(target)


def test_names_break_after_slashes() -> None:
    made = table("", ("tensor", "shape"), [(Name("params/layers/attention/kernel", "note"), "8")])
    assert lines([made], 30)[2:] == ["params/layers/ 8", "attention/kernel", "note"]


@given(st.text("ab/", max_size=80), st.integers(1, 30))
def test_breaking_a_name_keeps_every_character(name: str, width: int) -> None:
    pieces = broken(name, width)
    assert "".join(pieces) == name
    assert max(map(len, pieces)) <= width


def test_many_rows_are_capped_with_a_note() -> None:
    rows = list(range(100))
    assert capped(rows, show_all=True) == rows
    shown = capped(rows, show_all=False)
    assert len(shown) == 40
    assert cap_note(40, 100, "rows") == "… and 60 more rows; --all shows each tensor"
    assert cap_note(40, 40, "rows") is None


@given(st.integers(20, 140))
def test_nothing_is_cut_off_at_any_width(width: int) -> None:
    row = (Name("params/layers/attention/kernel"), "8192×28672\nfloat32 → bfloat16", "52.5 GiB")
    made = table("", ("tensor", "shape", ">bytes"), [row])
    text = show([made], width)
    assert max(map(len, text.splitlines())) <= width
    letters = set("tensorshapebytes" + "8192×28672float32→bfloat16" + "52.5GiB")
    assert letters <= set(text)
    assert text.count("8") == 2
    if width >= 50:
        assert "52.5 GiB" in text
        assert "8192×28672" in text


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1), st.integers(0, 200))
def test_widths_fill_the_room_and_no_more(sizes: list[tuple[int, int]], room: int) -> None:
    columns = [Measurement(least, least + more) for least, more in sizes]
    widths = fit(columns, room)
    assert sum(widths) <= max(room, len(widths))
    assert all(1 <= width <= size.maximum for width, size in zip(widths, columns, strict=True))
    if sum(size.maximum for size in columns) >= room >= len(widths):
        assert sum(widths) == room
    if sum(size.minimum for size in columns) <= room:
        assert all(width >= size.minimum for width, size in zip(widths, columns, strict=True))
