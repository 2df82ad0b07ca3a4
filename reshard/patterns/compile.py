"""Patterns of layout files, the command line, HTTP, and of select, drop, rename and cast.

``compile_pattern`` compiles all of them, for a search in linear time (RE2). A compiled pattern finds the same match and
the same groups as Python's ``re``. Any other pattern is an error; ``dialect`` lists the supported ones. Keys of a
``LayoutMap`` are not compiled here: they are Python's. ``Names`` joins many names as lines, so that one search covers all of them.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, count
from typing import Any, Protocol

from msgspec import Struct

from reshard.errors import ReshardError
from reshard.patterns.dialect import MAX_LENGTH, RefusedError, Translation, translated


class TooLargeError(Exception):
    """A pattern that needs more memory than allowed."""


MAX_BYTES = 8 << 20
"""Memory that a compiled pattern and its search may take."""

MAX_REPEATED = 100_000
"""Most parts that the counts of all patterns of one document may add; compiling them takes a tenth of a second."""

_WORDS_REMEDY = "start the pattern with (?a) to count only ASCII letters, digits and _ as words"
_ASCII_REMEDIES = {
    "(?i)": "write both cases, such as [Kk]",
    r"\b": _WORDS_REMEDY,
    r"\B": _WORDS_REMEDY,
}
_ASCII_REMEDY = r"list the characters, such as [0-9] for \d, or start the pattern with (?a) to match only ASCII ones"


class Search(Protocol):
    """The common methods of Python's ``re.Pattern`` and of ``Pattern``."""

    @property
    def pattern(self) -> str: ...

    def search(self, name: str, /) -> object: ...


class Counts:
    """Adds up the cost of counts such as {1000} in the patterns of one document."""

    def __init__(self) -> None:
        self.repeated = 0


def compile_pattern(
    pattern: str, subject: str, error: type[ReshardError], counts: Counts | None = None
) -> Pattern:
    """The compiled pattern.

    Args:
        subject: names the pattern and its place in messages: ``select 'a'``, ``rules[0] 'a' (l.yaml:3)``.
        error: the class of errors, raised if the text is not a supported regular expression, or a name cannot be
            searched.
        counts: adds up the counts of the document that has the pattern; too many are an error.
    """
    if len(pattern) <= MAX_LENGTH and (whole := _WHOLE_NAME.fullmatch(pattern)):
        return Pattern(pattern, subject, error, re.sub(r"\\(.)", r"\1", whole[1]))
    try:
        in_lines = translated(pattern, in_lines=True)
    except RefusedError as refused:
        raise error(f"{subject}: {refused}") from None
    except re.error as wrong:
        raise error(
            f"{subject} is no regular expression: {wrong}; escape special characters with a backslash"
        ) from None
    if counts is not None:
        counts.repeated += in_lines.repeated
        if counts.repeated > MAX_REPEATED:
            raise error(
                f"{subject}: the counts of all patterns together repeat more than {MAX_REPEATED} parts; use * or +"
            )
    return Pattern(pattern, subject, error, in_lines)


class Pattern:
    """A compiled pattern; ``compile_pattern`` makes it.

    Attributes:
        pattern: as it was written.
        whole: the one name in which it is found, of a pattern such as ``^layers\\.7$``; None for others. There may be one
            for each of 100,000 tensors, so these are looked up, and compiled only if that is not enough.
    """

    def __init__(
        self, pattern: str, subject: str, error: type[ReshardError], meaning: Translation | str
    ) -> None:
        self.pattern = pattern
        self.whole = meaning if isinstance(meaning, str) else None
        self._subject = subject
        self._error = error
        if not isinstance(meaning, str):
            self._dialect = meaning
            self._lines = self._compiled(meaning.source, captures=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_pattern, (self.pattern, self._subject, self._error)

    def __repr__(self) -> str:
        return f"Pattern({self.pattern!r})"

    @cached_property
    def _dialect(self) -> Translation:
        return translated(self.pattern, in_lines=True)

    @cached_property
    def _lines(self) -> Searcher:
        """Searches in names that are lines of a text."""
        return self._compiled(self._dialect.source, captures=False)

    @property
    def groups(self) -> int:
        """The number of its groups."""
        return self._dialect.groups

    def search(self, name: str) -> bool:
        """True if the pattern is found in the name; an error if Python's answer might differ."""
        text = self._checked(name)
        search = self._alone if "\n" in name else self._lines
        return search(text, 0, len(text))[0][0] >= 0

    def found(self, names: Names) -> Sequence[int]:
        """The positions of the names in which the pattern is found; raises what ``search`` raises."""
        if self.whole is not None and names.are_lines:
            return names.positions.get(self.whole, ())
        self._check_odd(names)
        try:
            lines, starts = names.lines, names.starts
        except UnicodeEncodeError:  # ``search`` raises for the name that has no UTF-8
            return [at for at, text in enumerate(names.texts) if self.search(text)]
        found = list(self._found_in_lines(lines, starts, len(names)))
        if names.with_newline:  # an empty line stands for each of these
            alone = [at for at in names.with_newline if self.search(names.texts[at])]
            return sorted({*found}.difference(names.with_newline).union(alone))
        return found

    def _check_odd(self, names: Names) -> None:
        """Raises what ``search`` raises for names that not every pattern can be searched in."""
        if self._dialect.ascii_part is not None and names.not_ascii is not None:
            self._checked(names.not_ascii)
        if self._dialect.has_inside and "" in names.texts:
            self._checked("")

    def _found_in_lines(self, lines: bytes, starts: Sequence[int], count: int) -> Iterator[int]:
        search, position, end = self._lines, 0, len(lines)
        while position < count and (begin := search(lines, starts[position], end)[0][0]) >= 0:
            # Most often the match is in the line at which the search began.
            if begin < starts[position + 1]:
                position += 1
            else:
                position = bisect_right(starts, begin, position)
            yield position - 1

    def replacement(self, to: str) -> Replacement:
        """Replaces the first match by a template, which may use groups (``\\1``, ``\\g<name>``), as ``re.sub`` does.

        Raises ``re.error`` or IndexError for groups that the pattern does not have.
        """
        without = self._filled(to, [None] * self.groups)
        mark = next(chr(code) for code in count(1) if chr(code) not in without)
        marked = [f"{mark}{number}{mark}" for number in range(self.groups + 1)]
        pieces = self._filled(to, marked[1:], marked[0]).split(mark)
        parts = tuple(int(piece) if i % 2 else piece for i, piece in enumerate(pieces))
        return Replacement(self, parts)

    def spans(self, name: str) -> tuple[bytes, Spans]:
        """The name in UTF-8, and the spans of the first match and its groups in it."""
        text = self._checked(name)
        return text, self._alone(text, 0, len(text))

    def _filled(self, to: str, groups: Sequence[str | None], match: str = "") -> str:
        """The template, filled in by Python itself for a match with these groups."""
        rest = "".join("\0" if group is None else f"\0\1{group}" for group in groups) + "\0"
        filled = self._groups.sub(to, match + rest, count=1)
        return filled[: len(filled) - len(rest)]

    @cached_property
    def _groups(self) -> re.Pattern[str]:
        """Has this pattern's group numbers and names; matches a text that lists a match and its groups."""
        names = {number: name for name, number in self._dialect.group_names.items()}
        begins = (f"(?P<{names[n]}>" if n in names else "(" for n in range(1, self.groups + 1))
        groups = "".join(f"\0(?:\1{begin}[^\0]*))?" for begin in begins)
        return re.compile(f"(?=[^\0]*{groups}\0)[^\0]*")

    def _checked(self, name: str) -> bytes:
        """The name in UTF-8; an error for a name in which Python might find something else."""
        part = self._dialect.ascii_part
        if part is not None and not name.isascii():
            raise self._unsearched(
                name,
                f"{part} is supported in ASCII names only; {_ASCII_REMEDIES.get(part, _ASCII_REMEDY)}",
            )
        if self._dialect.has_end and name.endswith("\n"):
            raise self._unsearched(
                name,
                r"the name ends with a newline, and Python's $ also matches before it; write \Z for the end of the "
                r"name, or \n?\Z for both",
            )
        if self._dialect.has_inside and not name:
            raise self._unsearched(
                name, r"\B in an empty name depends on the version of Python; write another pattern"
            )
        try:
            return name.encode()
        except UnicodeEncodeError:
            raise self._unsearched(
                name, "the name has a lone surrogate, so it is not valid text; rename the tensor"
            ) from None

    def _unsearched(self, name: str, why: str) -> ReshardError:
        return self._error(f"{self._subject} cannot be used on {name!r}: {why}")

    @cached_property
    def _alone(self) -> Searcher:
        """Searches in one name, with groups."""
        return self._compiled(translated(self.pattern, in_lines=False).source, captures=True)

    def _compiled(self, source: str, *, captures: bool) -> Searcher:
        try:
            return searcher(source, captures=captures, max_bytes=MAX_BYTES)
        except TooLargeError as error:
            raise self._error(
                f"{self._subject} is too large to compile in {MAX_BYTES >> 20} MiB ({error}); use smaller counts "
                "or several rules"
            ) from None


class Replacement(Struct, frozen=True):
    """Replaces a pattern's first match.

    Attributes:
        parts: of the template: literal text, and numbers of groups.
    """

    searched: Pattern
    parts: tuple[str | int, ...]

    def of(self, name: str) -> str:
        """The name with its first match replaced; unchanged if there is no match."""
        text, spans = self.searched.spans(name)
        begin, end = spans[0]
        if begin < 0:
            return name
        if len(text) == len(name):  # of ASCII, so that places in both are the same
            put = [p if isinstance(p, str) else name[slice(*spans[p])] for p in self.parts]
            return f"{name[:begin]}{''.join(put)}{name[end:]}"
        put = [p if isinstance(p, str) else text[slice(*spans[p])].decode() for p in self.parts]
        return f"{text[:begin].decode()}{''.join(put)}{text[end:].decode()}"


def shown(pattern: str) -> str:
    """A pattern as messages quote it, shortened if it is long."""
    quoted = repr(pattern)
    return quoted if len(quoted) <= 120 else f"{quoted[:117]}…"


def searcher(source: str, *, captures: bool, max_bytes: int) -> Searcher:
    """A compiled pattern of RE2's own dialect.

    Args:
        captures: True to find groups too, not only the match.
        max_bytes: memory that the pattern and its searches may take.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_bytes
    options.never_capture = not captures
    try:
        compiled = re2.compile(source.encode(), options=options)
    except re2.error as error:
        raise TooLargeError(_text(error)) from None
    finally:
        re2.purge()  # the package's cache would keep every pattern that a client ever sent
    return _direct(compiled, re2) or _by_match(compiled)


def _direct(compiled: Any, re2: Any) -> Searcher | None:
    """The search below the package's Match objects, three times as fast; None if a version lacks it."""
    match = getattr(getattr(compiled, "_regexp", None), "Match", None)
    anchor = getattr(getattr(re2, "_Anchor", None), "UNANCHORED", None)
    if match is None or anchor is None:
        return None
    return partial(match, anchor)


def _by_match(compiled: Any) -> Searcher:
    def search(text: bytes, begin: int, end: int) -> Spans:
        match = compiled.search(text, begin, end)
        groups = range(compiled.groups + 1)
        return [(-1, -1) if match is None else match.span(group) for group in groups]

    return search


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else ""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


class Names:
    """Names in which patterns are searched.

    Attributes:
        texts: the names, in order.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def not_ascii(self) -> str | None:
        """The first name that is not all ASCII."""
        return next((text for text in self.texts if not text.isascii()), None)

    @cached_property
    def with_newline(self) -> tuple[int, ...]:
        """The positions of the names with a newline; each of these names is searched alone."""
        return tuple(i for i, text in enumerate(self.texts) if "\n" in text)

    @cached_property
    def lines(self) -> bytes:
        """The names in UTF-8, a line each; those with a newline are empty lines.

        Raises UnicodeEncodeError if one has a lone surrogate.
        """
        return "\n".join(self._single()).encode()

    @cached_property
    def starts(self) -> Sequence[int]:
        """The start of each line, and the end of the last."""
        is_ascii = self.not_ascii is None
        lengths = (len(t if is_ascii else t.encode()) + 1 for t in self._single())
        return array("Q", accumulate(lengths, initial=0))

    @cached_property
    def are_lines(self) -> bool:
        """True if each name is a line of text: none has a newline or a lone surrogate, which searches refuse with a message."""
        try:
            self.lines.isascii()
        except UnicodeEncodeError:
            return False
        return not self.with_newline

    @cached_property
    def positions(self) -> Mapping[str, Sequence[int]]:
        """The positions of each name."""
        found: dict[str, list[int]] = defaultdict(list)
        for position, text in enumerate(self.texts):
            found[text].append(position)
        return found

    def _single(self) -> Sequence[str]:
        if not self.with_newline:
            return self.texts
        return ["" if "\n" in text else text for text in self.texts]


class HasPattern(Protocol):
    """A rule with a pattern."""

    def compiled(self) -> Pattern: ...


class FoundRules:
    """The positions of the rules that match each name, in order."""

    def __init__(self, rules: Sequence[HasPattern]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[int, ...]] = {}

    def learn(self, names: Sequence[str]) -> None:
        """Looks these names up, searching each pattern once in all of them.

        Earlier look-ups are forgotten. A compiled pattern is dropped after its search: tens of thousands of them
        would take more memory than the metadata of the tensors.
        """
        if all(name in self._known for name in names):
            return
        searched = Names(names)
        found: list[tuple[int, ...]] = [()] * len(searched)
        alike: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, rule in enumerate(self._rules):
            for position in rule.compiled().found(searched):
                rules = (*found[position], number)
                found[position] = alike.setdefault(rules, rules)
        self._known = dict(zip(names, found, strict=True))

    def of(self, name: str) -> tuple[int, ...]:
        """The positions of the rules that match the name; LayoutError if a pattern cannot be searched in it."""
        known = self._known.get(name)
        if known is not None:
            return known
        return tuple(i for i, pattern in enumerate(self._patterns) if pattern.search(name))

    @cached_property
    def _patterns(self) -> tuple[Pattern, ...]:
        return tuple(rule.compiled() for rule in self._rules)


Spans = list[tuple[int, int]]
"""Start and end of the match and its groups, in bytes; (-1, -1) for a group that did not match."""

Searcher = Callable[[bytes, int, int], Spans]
"""Finds the first match in a text in UTF-8, between two positions."""


_WHOLE_NAME = re.compile(r"\^((?:[^\\.^$*+?{}\[\]|()\n\ud800-\udfff]|\\[ -/:-@\[-`{-~])*)\$")
"""``^name$`` with escapes for special characters."""
