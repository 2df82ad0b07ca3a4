from __future__ import annotations

import pytest

from reshard.errors import LayoutError
from reshard.layout.byte_size import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), ("4096B", 4096), ("1KiB", 1024), ("1k", 1000), ("1Ki", 1024), ("2 MB", 2 * 10**6),
        ("256MiB", 256 << 20), (" 1.5gib ", 3 << 29), ("0.1KiB", 102), ("3T", 3 * 10**12), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1GiBs", "1 2", "½", "9" * 99, "1.", "٣"])
def test_refusals(text: str) -> None:
    with pytest.raises(LayoutError, match="is not a size in bytes; expected a number with a unit"):
        parse_bytes(text)
