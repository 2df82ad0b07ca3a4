"""Python's own parser of patterns is private (``re._parser``): every Python on this machine must give the translation the same tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reshard.patterns import dialect
from tests.patterns import translate_alone

FOLDER = Path(dialect.__file__).parent
SUPPORTED = range(11, 15)

TRANSLATED = {
    "a": "a",
    r"^params/(\d+)/(?P<kind>kernel|bias)$": r"\Aparams/((?:[\x{30}-\x{39}])+)/((?:kernel|bias))\z",
    "(?i)K": r"[\x{4b}\x{6b}]",
    "(?s:.)a{2,3}?": r"(?:[\x{0}-\x{10ffff}])(?:a){2,3}?",
    "[^/]*": r"(?:[\x{0}-\x{2e}\x{30}-\x{10ffff}])*",
    "a{,2}": "(?:a){0,2}",
    r"\Aa\b\Z": r"\Aa\b\z",
}
"""What a pattern becomes."""

OF_EVERY_KIND = [
    *TRANSLATED,
    ".", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", r"[^\d]", "[a-k1]", r"[\w\-/]", "[[a]", "[ü-ÿ]", "[^ü]", r"\x1c", r"\101",
    r"\.", r"\n", "^", "$", r"\B", "(?m:^)", "(?m:$)", "(?i:[^k])", "(?i:[i-s])", "(?i:ſ)", "(?i:a)b(?-i:c)", r"(?a:\w)", r"(?a)\w",
    "(?x) a # b", "()", "()*", "(a|b|)c", "ab|ac", "a*", "a+?", "a??", "(?:ab){2,}", "(?:ab){0}", "a{1001}", "(?:(?:a{30}){30}){30}",
    r"(\w)\1", "(?P<n>a)(?P=n)", "(a)(?(1)a|b)", "(?=a)", "(?!a)", "(?!)", "(?<=a)b", "(?<!a)b", "(?>ab)c", "a++", "a{2}+",
    "a**", "(", "[", "(?P<1>a)", "(?<=a*)b", r"\8", r"\y",
]  # fmt: skip
"""Every kind of node of the parser's tree, and texts that are no patterns."""


def pythons() -> list[str]:
    """The Python of the tests, and each supported one that pyenv has."""
    versions = Path("~/.pyenv/versions").expanduser()
    found = (versions.glob(f"3.{minor}.*/bin/python") for minor in SUPPORTED)
    return [sys.executable, *(str(path) for paths in found for path in paths)]


def asked(python: str) -> Any:
    words = [python, "-S", "-W", "error", translate_alone.__file__, str(FOLDER)]
    done = subprocess.run(
        words, input=json.dumps(OF_EVERY_KIND), capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_trees_are_the_same_in_every_python() -> None:
    expected = asked(sys.executable)
    assert expected["version"] == list(sys.version_info[:2])
    for python in pythons():
        found = asked(python)
        assert found["version"][1] in SUPPORTED
        assert found["answers"] == expected["answers"], python


@pytest.mark.parametrize("pattern", TRANSLATED)
def test_what_a_pattern_becomes(pattern: str) -> None:
    assert dialect.translated(pattern, in_lines=False).source == TRANSLATED[pattern]
