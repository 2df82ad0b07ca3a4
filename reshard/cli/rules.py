"""Rules on the command line, ``RE=NEW`` and ``LAYOUT=DST``, split at an equals sign."""

from __future__ import annotations

import re

from reshard.cli.options import Misuse

_EXAMPLES = {
    "--cast": "float=bfloat16",
    "--rename": "'^params/=model/'",
    "--target": "serving.yaml=served",
}


def casts(rules: list[str] | None) -> list[tuple[str, str]]:
    """``RE=DTYPE`` or ``float=DTYPE``, split at the last ``=``."""
    return [_halves("--cast", "RE=DTYPE", rule, rule.rpartition("=")) for rule in rules or []]


def halves(option: str, form: str, rule: str) -> tuple[str, str]:
    r"""A rule split at its last ``=`` without a backslash; ``\=`` after it is an equals sign.

    The first half may be empty.
    """
    first, equals, second = _at_last_bare_equals(rule)
    if not equals or not second:
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return first, _ESCAPED_EQUALS.sub(r"\1=", second)


def renames(rules: list[str] | None) -> list[tuple[str, str]]:
    r"""``RE=NEW`` split at the last ``=`` without a backslash; ``\=`` in NEW is an equals sign."""
    pairs = [
        _halves("--rename", "RE=NEW", rule, _at_last_bare_equals(rule)) for rule in rules or []
    ]
    return [(pattern, _ESCAPED_EQUALS.sub(r"\1=", new)) for pattern, new in pairs]


_EQUALS = re.compile(r"(\\*)=")
_ESCAPED_EQUALS = re.compile(r"((?:\\\\)*)\\=")


def _at_last_bare_equals(rule: str) -> tuple[str, str, str]:
    bare = [m.end() - 1 for m in _EQUALS.finditer(rule) if len(m[1]) % 2 == 0]
    return (rule[: bare[-1]], "=", rule[bare[-1] + 1 :]) if bare else ("", "", rule)


def _halves(option: str, form: str, rule: str, split: tuple[str, str, str]) -> tuple[str, str]:
    pattern, equals, new = split
    if not equals or not pattern or (not new and option == "--cast"):
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return pattern, new
