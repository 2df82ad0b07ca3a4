"""Names: many names joined as lines, so that one search of a pattern covers all of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate


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

    def _single(self) -> Sequence[str]:
        if not self.with_newline:
            return self.texts
        return ["" if "\n" in text else text for text in self.texts]
