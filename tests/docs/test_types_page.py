"""The page of the types: each record that it names is one of the code, and each field of Sums is on it."""

from __future__ import annotations

import re
from pathlib import Path

from reshard.checksums.sums import Sums

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "conversion-in-twelve-types.md").read_text("utf-8")


def test_records_that_are_named_exist() -> None:
    named = set(re.findall(r"`([A-Z]\w+)`", PAGE))
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "reshard").rglob("*.py"))
    assert len(named) > 8
    assert (
        sorted(name for name in named if not re.search(rf"^class {name}\b", code, re.MULTILINE))
        == []
    )


def test_each_number_of_sums_is_told() -> None:
    proof = PAGE.partition("## Proof")[2]
    assert [field for field in Sums.__struct_fields__ if f"`{field}`" not in proof] == []
