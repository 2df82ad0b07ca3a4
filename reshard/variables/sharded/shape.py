"""The shape of a variable: a tuple that can also be asked as TensorFlow's shapes are."""

from __future__ import annotations


class Shape(tuple[int, ...]):
    """A tuple of sizes, with ``as_list()`` as ``tf.TensorShape`` has it.

    >>> Shape((3, 2)) == (3, 2), Shape((3, 2)).as_list()
    (True, [3, 2])
    """

    __slots__ = ()

    def as_list(self) -> list[int]:
        """The sizes as a list."""
        return list(self)
