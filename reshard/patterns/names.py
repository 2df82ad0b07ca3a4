"""Names: many names joined as lines, so that one search of a pattern covers all of them; and the rules found in each."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reshard.patterns.compile import Pattern


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
