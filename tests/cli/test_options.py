from __future__ import annotations

import pytest
import typer

from reshard.cli.options import casts, duration, link_of, rate, renames, size


def test_casts_split_at_the_last_equals_sign() -> None:
    assert casts(["a=b=float32", r"x\=y=int8"]) == [("a=b", "float32"), (r"x\=y", "int8")]
    assert casts(None) == []


@pytest.mark.parametrize(
    ("rule", "pair"),
    [
        ("^params/=model/", ("^params/", "model/")),
        ("a=b=c", ("a=b", "c")),
        (r"a=b\=c", ("a", "b=c")),
        (r"a=b\\=c", (r"a=b\\", "c")),
        (r"a=b\\\=c", ("a", r"b\\=c")),
        ("^params/=", ("^params/", "")),
        (r"(\w+)/k=\1/kernel", (r"(\w+)/k", r"\1/kernel")),
    ],
)
def test_renames_split_at_the_last_bare_equals_sign(rule: str, pair: tuple[str, str]) -> None:
    assert renames([rule]) == [pair]


@pytest.mark.parametrize("rule", ["bfloat16", "=bfloat16", "params/="])
def test_a_cast_needs_both_halves(rule: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        casts([rule])
    expected = f"--cast {rule!r}: expected RE=DTYPE, such as float=bfloat16"
    assert error.value.format_message().endswith(expected)


@pytest.mark.parametrize("rule", ["params", "=model", r"a\=b"])
def test_a_rename_needs_a_pattern_and_an_equals_sign(rule: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        renames([rule])
    expected = f"--rename {rule!r}: expected RE=NEW, such as '^params/=model/'"
    assert error.value.format_message().endswith(expected)


def test_sizes() -> None:
    assert size("1.5MiB") == 3 << 19
    with pytest.raises(typer.BadParameter, match="'much' is not a size in bytes"):
        size("much")


def test_times_and_rates() -> None:
    assert (duration("30ms"), duration("1.5 s"), rate("150MB/s"), rate("1MiB")) == (
        0.03, 1.5, 150_000_000, 1 << 20,
    )  # fmt: skip
    assert link_of(None, None) == {}
    assert link_of(0.1, 5) == {"latency_s": 0.1, "bytes_per_s": 5}
    with pytest.raises(
        typer.BadParameter, match="'30' is not a time; expected a number with ms or s, such as 30ms"
    ):
        duration("30")
    with pytest.raises(
        typer.BadParameter, match="'9999 s' is too long for a request; expected at most an hour"
    ):
        duration("9999 s")
    with pytest.raises(typer.BadParameter, match="'fast' is not a size in bytes"):
        rate("fast/s")
