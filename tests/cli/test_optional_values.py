"""``--ray`` with and without an address."""

from __future__ import annotations

import pytest

from reshard.cli.app import run
from reshard.cli.options import completed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["convert", "a", "b", "--ray"], ["convert", "a", "b", "--ray", "auto"]),
        (["convert", "--ray", "a", "b"], ["convert", "--ray", "auto", "a", "b"]),
        (["convert", "--ray", "gs://a/b", "c"], ["convert", "--ray", "auto", "gs://a/b", "c"]),
        (
            ["convert", "a", "b", "--ray", "--json"],
            ["convert", "a", "b", "--ray", "auto", "--json"],
        ),
        (["convert", "a", "b", "--ray", "host:6379"], ["convert", "a", "b", "--ray", "host:6379"]),
        (
            ["convert", "a", "b", "--ray", "[::1]:6379"],
            ["convert", "a", "b", "--ray", "[::1]:6379"],
        ),
        (["convert", "a", "b", "--ray", "auto"], ["convert", "a", "b", "--ray", "auto"]),
        (["convert", "a", "b", "--ray=x"], ["convert", "a", "b", "--ray=x"]),
        ([], []),
    ],
)
def test_an_option_without_a_value_gets_one(words: list[str], expected: list[str]) -> None:
    assert completed(words) == expected


def test_what_excludes_what(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--ray", "--part", "1/2"],
        ["--part", "1/2", "--server", "http://x"],
        ["--ray", "--server", "http://x"],
    ):
        assert run(["convert", "a", "b", *words]) == 2
        assert (
            "exclude each other: each decides where the conversion runs" in capsys.readouterr().err
        )
    assert run(["convert", "a", "b", "--parts", "2"]) == 2
    assert (
        "give --ray or --server, or do each part by itself: --part 1/N to N/N"
        in capsys.readouterr().err
    )
