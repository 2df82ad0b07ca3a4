"""Which of several rules match a name: the names of a checkpoint are looked up together, once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import Protocol

from reshard.patterns.compile import Pattern
from reshard.patterns.names import Names


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
            flags = rule.compiled().found(searched)
            for position in compress(range(len(flags)), flags):
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
