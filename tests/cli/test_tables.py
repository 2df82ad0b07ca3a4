from __future__ import annotations

from io import BytesIO, TextIOWrapper

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from reshard.cli.tables import Column, cap_note, capped, fit, shortened, table, warning
from reshard.cli.text import safe
from tests.cli.show import console, lines, show, text_of


def test_cells_are_never_markup_nor_control_characters() -> None:
    made = table("", ("tensor", ">n"), [("a[bold]b\x1b[2J", "[red]1\x07")])
    text = show([made, warning("[link]x\x1b")])
    assert "a[bold]b\\x1b[2J" in text
    assert "[red]1\\x07" in text
    assert "warning: [link]x\\x1b" in text
    assert "\x1b" not in text


def test_a_terminal_gets_no_escape_from_a_name() -> None:
    target = console(80, colours=True)
    target.print(table("", ("tensor",), [("\x1b]8;;http://evil\x07x",)]))
    assert "]8;;http://evil\x07" not in text_of(target)


def test_long_names_are_shortened_in_the_middle() -> None:
    made = table("", ("tensor", "shape"), [("params/layers/attention/kernel", "8")])
    assert lines([made], 30) == ["tensor shape", "─" * 30, "params/laye…tion/kernel 8"]


@given(st.text(), st.integers(0, 40))
def test_what_is_shortened_fits_and_keeps_both_ends(text: str, width: int) -> None:
    found = shortened(safe(text), width)
    assert cell_len(found) <= width
    if cell_len(safe(text)) <= width:
        assert found == safe(text)
    elif width >= 5 and safe(text).isascii():
        start, end = found.split("…", 1)
        assert safe(text).startswith(start) and safe(text).endswith(end)
        assert len(start) + len(end) == width - 1


def test_a_terminal_without_other_characters_gets_ascii() -> None:
    made = table("", ("tensor", "shape"), [("params/layers/attention/kernel", "8")])
    stream = TextIOWrapper(BytesIO(), encoding="ascii")
    Console(file=stream, width=30, markup=False).print(made)
    stream.flush()
    assert isinstance(stream.buffer, BytesIO)
    text = stream.buffer.getvalue().decode("ascii").splitlines()
    assert text[2] == "-" * 30
    assert text[3].startswith("params/laye~tion/kernel")


def test_columns_give_way_by_rank() -> None:
    columns = ("tensor", Column("often", rank=1), Column("seldom", rank=2), ">bytes")
    made = table("", columns, [("params/kernel", "x" * 10, "y" * 10, "4 B")])
    assert "seldom" in lines([made], 80)[0]
    narrow = lines([made], 43)
    assert narrow[0] == "tensor often bytes"
    assert narrow[-1] == "too narrow for: seldom; --all shows them"
    assert lines([made], 30)[0] == "tensor bytes"


def test_whole_rows_keep_every_character() -> None:
    name = "params/" + "x" * 200
    made = table("", ("tensor", Column("seldom", rank=2)), [(name, "y" * 40)], whole=True)
    target = console(40)
    target.print(made, crop=False)
    assert f"{name}  {'y' * 40}\n" in text_of(target)


def test_many_rows_are_capped_with_a_note() -> None:
    rows = list(range(100))
    assert capped(rows, show_all=True) == rows
    shown = capped(rows, show_all=False)
    assert len(shown) == 40
    assert cap_note(40, 100, "rows") == "… and 60 more rows; --all shows each tensor"
    assert cap_note(40, 40, "rows") is None


@given(st.integers(8, 140))
def test_each_row_is_one_line_of_at_most_the_width(width: int) -> None:
    row = ("params/layers/attention/kernel", "8192×28672", "float32 → bfloat16", "52.5 GiB")
    made = table("", ("tensor", "shape", Column("dtype", rank=1), ">bytes"), [row, row])
    text = show([made], width).rstrip("\n").splitlines()
    assert max(map(cell_len, text)) <= width
    assert len([line for line in text if "…" in line or "kernel" in line]) <= 3
    if width >= 45:
        assert "52.5 GiB" in text[3] and "8192×28672" in text[3]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 200))
def test_columns_fill_the_width_and_no_more(natural: list[int], room: int) -> None:
    widths = fit(natural, room)
    assert sum(widths) <= max(room, len(widths))
    assert all(1 <= width <= most for width, most in zip(widths, natural, strict=True))
    if sum(natural) >= room >= len(widths):
        assert sum(widths) == room
