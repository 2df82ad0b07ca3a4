from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.sizes import MAX_BYTES, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 1 << 30),
        ("256MiB", 256 << 20),
        ("10MB", 10_000_000),
        ("512", 512),
        (512, 512),
        (0, 0),
        ("0", 0),
        ("1.5GiB", 3 << 29),
        (" 64 kb ", 64_000),
        ("2Ti", 2 << 40),
        ("7k", 7000),
        ("1PiB", 1 << 50),
        ("8EiB", MAX_BYTES),
        ("3B", 3),
        ("0.3KiB", 307),
    ],
)
def test_parses_what_people_write(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "1XiB",
        "-1",
        "1e9",
        "1,5GiB",
        "0x10",
        "1 GiB 2",
        "1.GiB",
        "٣",
        "nan",
        -1,
        True,
        1.5,
        None,
    ],
)
def test_refuses_what_is_no_size(text: object) -> None:
    with pytest.raises(LayoutError) as error:
        parse_bytes(text)
    assert str(error.value) == (
        f"{text!r} is not a size in bytes; expected a number with a unit such as 1GiB, 256MiB, 64KB, "
        "or whole bytes such as 4096"
    )


def test_refuses_sizes_that_no_machine_has() -> None:
    with pytest.raises(
        LayoutError, match=r"'9EiB' is more bytes than any machine holds; expected at most 8EiB"
    ):
        parse_bytes("9EiB")
    with pytest.raises(LayoutError, match="is more bytes than any machine holds"):
        parse_bytes(MAX_BYTES + 1)


def test_a_huge_text_is_refused_briefly() -> None:
    with pytest.raises(LayoutError) as error:
        parse_bytes("9" * 100_000)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 << 20, "10.0 MiB"),
        (256 << 20, "256 MiB"),
        (1023 << 20, "1.00 GiB"),
        (1.45e12, "1.32 TiB"),
        (1 << 62, "4.00 EiB"),
        (1 << 74, "16384 EiB"),
    ],
)
def test_shows_three_digits_and_a_unit(size: float, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, MAX_BYTES // 2))
def test_what_is_shown_parses_to_nearly_the_same(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.006, abs=1)
