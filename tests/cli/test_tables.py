from __future__ import annotations

from io import BytesIO, TextIOWrapper

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from reshard.cli.console import UNLIMITED, most_rows
from reshard.cli.tables import (
    Column,
    broken,
    cap_note,
    capped,
    fit,
    names_text,
    table,
    warning,
)
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


LONG = "params/layers/attention/kernel"


def test_a_name_that_does_not_fit_has_a_line_of_its_own() -> None:
    made = table(
        "", ("tensor", "shape", ">bytes"), [(LONG, "8", "32 B"), ("step", "scalar", "4 B")]
    )
    assert show([made], 24).splitlines() == [
        "",
        "tensor  shape   bytes",
        "─────────────────────",
        LONG,
        "        8        32 B",
        "step    scalar    4 B",
        "",
    ]
    made = table("", ("tensor", "shape", ">bytes"), [(LONG, "8", "32 B"), (LONG, "scalar", "4 B")])
    assert show([made], 24).splitlines() == [
        "",
        "tensor",
        "  shape   bytes",
        "───────────────",
        LONG,
        "  8        32 B",
        LONG,
        "  scalar    4 B",
        "",
    ]


def test_a_renamed_tensor_has_both_names() -> None:
    assert names_text("a", "b") == "a → b"
    assert names_text("a", "a") == names_text(None, "a") == "a"
    made = table("", ("tensor", "n"), [(names_text(LONG, "model/kernel"), "1")])
    assert lines([made], 80)[2] == f"{LONG} → model/kernel 1"
    assert lines([made], 30)[3:] == [LONG, "→ model/kernel", "1"]


def test_other_texts_are_broken_between_words() -> None:
    made = table("", ("tensor", "why"), [("w", "only in A (float32 2048×8192)")])
    assert show([made], 24).splitlines()[2:] == [
        "─" * 24,
        "w       only in A",
        "        (float32",
        "        2048×8192)",
        "",
    ]
    assert broken("日本語 日本", 4) == ["日本", "語", "日本"]


@given(st.text(), st.integers(2, 40))
def test_what_is_broken_keeps_every_character_and_fits(text: str, width: int) -> None:
    found = broken(safe(text), width)
    assert max(map(cell_len, found)) <= width
    assert "".join(found).replace(" ", "") == safe(text).replace(" ", "")


def test_a_terminal_without_other_characters_gets_ascii() -> None:
    made = table("", ("tensor", "shape"), [(LONG, "8")])
    stream = TextIOWrapper(BytesIO(), encoding="ascii")
    Console(file=stream, width=30, markup=False).print(made)
    stream.flush()
    assert isinstance(stream.buffer, BytesIO)
    text = stream.buffer.getvalue().decode("ascii").splitlines()
    assert text[3:5] == ["-" * 7, LONG]


def test_columns_give_way_to_names_by_rank() -> None:
    columns = ("tensor", Column("often", rank=1), Column("seldom", rank=2), ">bytes")
    made = table("", columns, [("params/kernel", "x" * 10, "y" * 10, "4 B")])
    assert "seldom" in lines([made], 80)[0]
    narrow = lines([made], 43)
    assert narrow[0] == "tensor often bytes"
    assert narrow[-1] == "too narrow for: seldom; --all shows them"
    assert lines([made], 30)[0] == "tensor bytes"


def test_output_without_a_width_has_a_line_for_each_row_and_every_column() -> None:
    row = ("params/" + "x" * 5000, "y" * 5000, "4 B")
    made = table("", ("tensor", Column("seldom", rank=2), ">bytes"), [row])
    assert "  ".join((*row[:2], "  4 B")) in show([made], UNLIMITED)


def test_a_pipe_gets_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_rows() == 40  # COLUMNS names a screen
    monkeypatch.delenv("COLUMNS")
    assert most_rows() > 10**9


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
def test_only_names_are_wider_than_the_screen(width: int) -> None:
    row = (LONG, "8192×28672", "float32 → bfloat16", "52.5 GiB")
    made = table("", ("tensor", "shape", Column("dtype", rank=1), ">bytes"), [row, row])
    text = show([made], width).rstrip("\n").splitlines()
    assert all(cell_len(line) <= width or line in (LONG, "tensor") for line in text)
    assert sum(LONG in line for line in text) == 2
    if width >= 30:
        assert sum("8192×28672" in line and "52.5 GiB" in line for line in text) == 2


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 200))
def test_columns_fill_the_width_and_no_more(natural: list[int], room: int) -> None:
    widths = fit(natural, room)
    assert sum(widths) <= max(room, len(widths))
    assert all(1 <= width <= most for width, most in zip(widths, natural, strict=True))
    if sum(natural) >= room >= len(widths):
        assert sum(widths) == room
