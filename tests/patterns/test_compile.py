"""Patterns find what Python's ``re`` finds, the same match with the same groups, or they are an error."""

from __future__ import annotations

import copy
import itertools
import re
import string
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reshard.errors import LayoutError, PlanError
from reshard.patterns import compile as compiling
from reshard.patterns.compile import Names, Pattern, compile_pattern, shown
from reshard.patterns.dialect import MAX_DEPTH, MAX_LENGTH
from tests.campaigns import examples

ATOMS = (
    "a", "b", "k", "/", "_", "1", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", r"[^\d]", "[a-k1]",
    "^", "$", r"\A", r"\Z", r"\b", r"\B", "()", r"\n", "\n", "ü", "[ü-ÿ]", "[^ü]", r"\x1c", r"\101", r"\.",
    "(?i:k)", "(?i:[^k])", "(?i:[i-s])", "(?i:ſ)", "(?s:.)", "(?m:^)", "(?m:$)", r"(?a:\w)", r"(?a:\b)", "(?x: a b)",
    "(?=a)", "(?<!b)", r"(\w)\1", "a*+", "(?>a)", "[[a]", "a{,2}",
)  # fmt: skip
COUNTS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}?", "{,2}", "{2,}", "{0}")
TEXTS = st.text(alphabet="aabbk/_1 AKS\n\x1cüÜKſı", max_size=8)


def _grown(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map("".join),
        pairs.map(lambda p: f"({p[0]}|{p[1]})"),
        pairs.map(lambda p: f"(?:{p[0]}|{p[1]})"),
        children.map(lambda c: f"({c})"),
        children.map(lambda c: f"(?P<n>{c})"),
        st.tuples(children, st.sampled_from(COUNTS)).map(lambda p: f"({p[0]}){p[1]}"),
        st.tuples(children, st.sampled_from(COUNTS)).map(lambda p: f"(?:{p[0]}){p[1]}"),
    )


PATTERNS = st.recursive(st.sampled_from(ATOMS), _grown, max_leaves=12)
WHOLE_NAMES = TEXTS.map(lambda text: f"^{re.escape(text)}$")


def compiled(pattern: str) -> Pattern:
    return compile_pattern(pattern, f"select {shown(pattern)}", PlanError)


def both(pattern: str) -> tuple[re.Pattern[str], Pattern] | None:
    """Python's and ours; None where either refuses it."""
    try:
        return re.compile(pattern), compiled(pattern)
    except (re.error, PlanError):
        return None


@settings(max_examples=examples(300))
@given(PATTERNS | WHOLE_NAMES, st.lists(TEXTS, min_size=1, max_size=4))
@example("(a*)*", ["b"])
@example(r"(|a)+", ["aaa"])
@example("a$", ["a\n"])
@example(r"\w", ["ü"])
@example("(?i)ı", ["i"])
@example("(a|ab)(c|bcd)(d*)", ["abcd"])
@example("((a)|b)*", ["ab"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_matches_and_groups_are_pythons_or_it_is_an_error(pattern: str, names: list[str]) -> None:
    pair = both(pattern)
    if pair is None:
        return
    python, ours = pair
    assert ours.groups == python.groups
    to = "".join(rf"[\g<{number}>]" for number in range(python.groups + 1))
    searched = []
    for name in names:
        try:
            found = ours.search(name)
        except PlanError:
            continue
        searched.append(name)
        assert found == (python.search(name) is not None)
        assert ours.replacement(to).of(name) == python.sub(to, name, count=1)
        text, spans = ours.spans(name)
        match = python.search(name)
        if match is not None:
            places = [match.span(number) for number in range(python.groups + 1)]
            assert [_in_characters(text, span) for span in spans] == places
    expected = [at for at, name in enumerate(searched) if python.search(name)]
    try:
        assert list(ours.found(Names(searched))) == expected
    except PlanError:
        pytest.fail("names that can be searched one by one can be searched together")


def _in_characters(text: bytes, span: tuple[int, int]) -> tuple[int, int]:
    if span[0] < 0:
        return span
    return len(text[: span[0]].decode()), len(text[: span[1]].decode())


TEMPLATES = (
    "x",
    r"\1",
    r"\g<1>",
    r"\g<0>!",
    r"\g<n>",
    r"\2\1",
    r"a\\b",
    r"\n",
    r"\x",
    r"\9",
    "\x01\x02",
    r"\101",
    "\\",
)


@pytest.mark.parametrize("to", TEMPLATES)
@pytest.mark.parametrize("pattern", ["a", "(a)(z)?", "(?P<n>a)|(b)", "(a)(?P<n>/)"])
def test_templates_are_pythons(pattern: str, to: str) -> None:
    def outcome(replaced: Any) -> str:
        try:
            return str(replaced())
        except (re.error, IndexError) as error:
            return f"{type(error).__name__}: {error}"

    for name in ("xa/y", "a", "b\x01a\x02", "äaé"):
        by_python = outcome(lambda name=name: re.sub(pattern, to, name, count=1))
        ours = outcome(lambda name=name: compiled(pattern).replacement(to).of(name))
        assert ours == by_python


def test_every_character_is_in_the_sets_that_python_has_it_in() -> None:
    """Each ASCII character in each set, and under (?i) also sets of the four letters that fold to ASCII."""
    texts = [chr(code) for code in range(1, 128) if chr(code) != "\n"]
    sets = [
        r"\d",
        r"\s",
        r"\w",
        r"\D",
        r"\S",
        r"\W",
        ".",
        "[a-f]",
        "[^a-f]",
        "k",
        "[ıſ]",
        "İ",
        "K",
        "[^K]",
        "[Z-b]",
    ]
    for flags, one in itertools.product(("", "(?i)", "(?a)", "(?ai)", "(?s)"), sets):
        expected = [at for at, text in enumerate(texts) if re.fullmatch(flags + one, text)]
        assert compiled(f"{flags}^(?:{one})$").found(Names(texts)) == expected, (flags, one)


def test_what_equals_a_letter_of_ascii_is_what_python_says() -> None:
    """No other character beyond ASCII equals one of ASCII under (?i)."""
    letters = re.compile(f"(?i)[{string.ascii_letters}]")
    folded = {code for code in range(128, 0x110000) if letters.fullmatch(chr(code))}
    assert folded == {0x130, 0x131, 0x17F, 0x212A}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?!mu)", "look-ahead and look-behind ((?=…), (?!…), (?<=…), (?<!…)) are not supported; leave names out with drop, "
         "or put a rule that takes them before this one"),
        ("(?<=a)b", "look-ahead and look-behind"),
        ("(?!)", "look-ahead and look-behind"),
        (r"(a)\1", r"references to a group ((?P=name), \1, (?(1)…)) are not supported; write out the alternatives"),
        ("(?P<n>a)(?P=n)", "references to a group"),
        ("(a)?(?(1)b|c)", "references to a group"),
        ("a*+", "possessive quantifiers and atomic groups are not supported; use a plain quantifier, such as a* for a*+"),
        (r"(?a:\w)", "(?a:…) and (?u:…) are not supported; write (?a) at the start of the pattern"),
        ("(?>a)", "possessive quantifiers and atomic groups are not supported"),
        ("a{1001}", "it repeats something more than 1000 times, nested counts multiplied; use * or +"),
        ("(?:a{40}){40}", "it repeats something more than 1000 times"),
        ("a{99999999999}", "it repeats something more than 1000 times"),
        ("(a*)*", "it repeats a part that can match nothing; make that part match at least one character, such as (a+)* "
         "for (a*)*"),
        ("[[:digit:]]", "'[' in a set has more than one meaning in regular expressions; escape it with a backslash, and "
         "write [0-9] for [[:digit:]]"),
        ("[a--z]", "'--' in a set has more than one meaning"),
        ("(" * 499 + "a" + ")" * 499, f"parentheses are nested more than {MAX_DEPTH} deep; use fewer"),
        ("a" * (MAX_LENGTH + 1), f"it has {MAX_LENGTH + 1} characters, more than {MAX_LENGTH}; use several rules"),
        ("[^x]{999}" * 200, "is too large to compile in 8 MiB"),
        ("\ud800", "it has the lone surrogate 0xd800, which no name has; write the whole character"),
        ("a(", "is no regular expression: missing ), unterminated subpattern at position 1; escape special characters with "
         "a backslash"),
        (r"\pN", r"is no regular expression: bad escape \p at position 0"),
        (r"\Qa\E", r"is no regular expression: bad escape \Q at position 0"),
        (r"a\z", r"is no regular expression: bad escape \z at position 1"),
        ("(?U)a", "is no regular expression: unknown extension ?U at position 1"),
        ("(?<n>a)", "is no regular expression: unknown extension ?<n at position 1"),
    ],
)  # fmt: skip
def test_refusals(pattern: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(pattern)
    assert str(caught.value).startswith(f"select {shown(pattern)}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "name", "message"),
    [
        (r"^\d", "größe", r"select '^\\d' cannot be used on 'größe': \d is supported in ASCII names only; list the "
         r"characters, such as [0-9] for \d, or start the pattern with (?a) to match only ASCII ones"),
        (r"[^\s]", "ü", r"\s is supported in ASCII names only"),
        (r"\W", "ü", r"\W is supported in ASCII names only"),
        (r"\bx", "ü", r"\b is supported in ASCII names only; start the pattern with (?a)"),
        ("(?i)k", "ü", "(?i) is supported in ASCII names only; write both cases, such as [Kk]"),
        ("a$", "a\n", r"the name ends with a newline, and Python's $ also matches before it; write \Z for the end of the "
         r"name, or \n?\Z for both"),
        (r"\B", "", r"\B in an empty name depends on the version of Python"),
        ("a", "a\ud800", "the name has a lone surrogate, so it is not valid text; rename the tensor"),
    ],
)  # fmt: skip
def test_names_on_which_a_pattern_cannot_be_used(pattern: str, name: str, message: str) -> None:
    ours = compiled(pattern)
    for search in (
        lambda: ours.search(name),
        lambda: ours.found(Names(["b", name])),
        lambda: ours.replacement("x").of(name),
    ):
        with pytest.raises(PlanError) as caught:
            search()
        assert message in str(caught.value)


def test_patterns_of_whole_names_are_looked_up_and_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[str] = []
    monkeypatch.setattr(
        compiling,
        "searcher",
        lambda source, **_: searches.append(source) or (lambda *_: [(-1, -1)]),
    )
    names = [f"layers/{n}.w" for n in range(1000)]
    for number, name in enumerate(names):
        assert list(compiled(f"^{re.escape(name)}$").found(Names(names))) == [number]
    assert not searches
    assert not list(compiled(r"^layers/7.w$").found(Names(names)))
    assert len(searches) == 1


def test_the_flag_a_makes_them_usable() -> None:
    names = ["größe/7", "٣", "ü", "x_1"]
    for pattern in (r"(?a)\d", r"(?a)\w$", r"(?a)\b7", r"(?a)\W\Z", r"(?a)[^\d]\B"):
        expected = [at for at, name in enumerate(names) if re.search(pattern, name)]
        assert compiled(pattern).found(Names(names)) == expected


def test_sets_with_brackets_and_escapes_are_taken() -> None:
    for pattern in ("[]a]", "[^]a]", r"[\[\]]", r"[a\-\-z]", r"(\((\([()(]a\)))"):
        assert compiled(pattern).groups == re.compile(pattern).groups


def test_names_with_newlines_are_searched_with_the_others() -> None:
    names = ["a", "b\na", "", "a\n\nb", "b"]
    for pattern in ("^a", r"a\Z", "a.b", "(?s)b.a", r"b\n", "^$|b", "(?m)^a$", "x*"):
        expected = [at for at, name in enumerate(names) if re.search(pattern, name)]
        assert compiled(pattern).found(Names(names)) == expected, pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("^([a-z0-9_/]+)+!$", "params/" + "layers/" * 40),
        ("(?:^|$)" * 40 + r"\b", "params/kernel"),
        ("(a|aa)+$", "a" * 3000 + "b"),
        ("(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)x", "a" * 3000),
    ],
)
def test_hostile_patterns_take_no_time(pattern: str, name: str) -> None:
    began = time.monotonic()
    ours = compiled(pattern)
    ours.search(name)
    ours.found(Names([name] * 100))
    ours.replacement("x").of(name)
    assert time.monotonic() - began < 20  # Python's re takes years


def test_a_version_without_the_direct_search_works_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def search_all() -> tuple[Any, ...]:
        ours = compiled("(b)|(ü)x")
        names = Names(["ab", "c", "aüx"])
        return ours.found(names), ours.spans("aüx"), ours.replacement(r"<\2>").of("aüxx")

    direct = search_all()
    monkeypatch.setattr(compiling, "_direct", lambda *_: None)
    assert search_all() == direct


def test_a_pattern_can_be_copied() -> None:
    twin = copy.deepcopy(compiled("^a(b)"))
    assert twin.pattern == "^a(b)" and twin.search("ab") and not twin.search("ba")


def test_errors_have_the_given_class() -> None:
    with pytest.raises(LayoutError, match="rule 1: look-ahead"):
        compile_pattern("(?=a)", "rule 1", LayoutError)
