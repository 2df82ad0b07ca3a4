"""CheckedTarget: what is refused, and compressions as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.conversion.check_target import CheckedTarget, parsed_options
from reshard.conversion.options import Target
from reshard.engine.limits import check_limits
from reshard.errors import PlanError
from reshard.formats.contents import Encoding, parse_compression


def refused(text, make, *args, **kwargs):
    with pytest.raises(PlanError) as caught:
        make(*args, **kwargs)
    assert str(caught.value).startswith(text)


def test_defaults():
    options = CheckedTarget(1 << 20, 2)
    assert options.format_options["compression"] == Encoding("none", None, checksum=True)
    assert options.format_options["chunk_bytes"] == 256 << 20
    assert options.check == "written"
    assert not options.overwrite


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, float("nan")])
def test_numbers_that_are_none(value):
    text = f"{{}} is {value!r}; expected a whole number of at least 1 ("
    refused(text.format("max_memory"), CheckedTarget, value, 1)
    refused(text.format("workers"), CheckedTarget, 1, value)
    refused(text.format("max_memory"), check_limits, value, 1)
    refused(text.format("workers"), check_limits, 1, value)


@pytest.mark.parametrize("name", ["chunk_bytes", "file_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, float("nan")])
def test_sizes_that_are_none(name, value):
    text = f"{name} is {value!r}; expected a whole number of at least 1 (bytes, such as "
    refused(text, parsed_options, Target("", **{name: value}))


def test_the_remedy_is_in_the_message():
    refused(
        "workers is 0; expected a whole number of at least 1 (tasks at once, such as 2), or leave it "
        "out for the default", check_limits, 1, 0,
    )  # fmt: skip


def test_choices():
    words = "style is 'v3'; expected one of None, 'v0', 'v1'"
    refused(words, parsed_options, Target("", style="v3"))
    refused("to is 'x'; expected one of None, 'orbax', 'safetensors'", CheckedTarget, 1, 1, to="x")
    refused("check is True; expected one of 'written', 'readback'", CheckedTarget, 1, 1, check=True)


@pytest.mark.parametrize(
    ("text", "compressor", "level"),
    [
        ("none", "none", None),
        ("zstd", "zstd", 1),
        ("zstd:22", "zstd", 22),
        ("zstd:-5", "zstd", -5),
        ("gzip", "gzip", 6),
        ("gzip:0", "gzip", 0),
        ("gzip:9", "gzip", 9),
        ("blosc", "blosc", 1),
    ],
)
def test_compressions(text, compressor, level):
    found = parse_compression(text)
    assert (found.compressor, found.level, found.checksum) == (compressor, level, True)


def test_keep_is_none():
    assert parse_compression("keep") is None


def test_blosc_names_its_parameters():
    assert set(json.loads(parse_compression("blosc").spec)) == {"cname", "shuffle", "blocksize"}


@pytest.mark.parametrize(
    "text",
    ["", "lz4", "ZSTD", "zstd:23", "gzip:10", "gzip:-1", "none:1", "keep:1", "blosc:3", "zstd 1",
     None, 3, b"zstd"],
)  # fmt: skip
def test_compressions_that_are_none(text):
    refused(f"compression {text!r} is not known; expected none, zstd[:level up to 22]", parse_compression, text)  # fmt: skip


@pytest.mark.parametrize("level", ["x", "1.5", "1:2", " ", "٣x"])
def test_levels_that_are_none(level):
    refused(f"compression {f'zstd:{level}'!r}: the level must be a whole number", parse_compression, f"zstd:{level}")  # fmt: skip


@given(st.text(max_size=12))
def test_any_text_is_a_compression_or_refused(text):
    try:
        parse_compression(text)
    except PlanError as error:
        assert repr(text) in str(error)
