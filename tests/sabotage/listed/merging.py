"""Sabotages of merges."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

MERGE = "reshard/arithmetic/merge.py"

SABOTAGES = (
    Sabotage(
        "rounded-twice",
        "an average goes to bfloat16 over float32, and half way between two numbers the wrong way",
        "reshard/arithmetic/rounding.py",
        "    if found.size:\n",
        "    if False:\n",
        ("tests/arithmetic/test_rounding.py::test_beside_every_midpoint",),
    ),
    Sabotage(
        "sums-as-given",
        "the bits of an average depend on the order in which checkpoints are given",
        MERGE,
        "key=lambda i: (texts[i], values[i])",
        "key=lambda i: i",
        ("tests/arithmetic/test_merge.py::test_the_order_of_checkpoints_changes_no_bit",),
    ),
    Sabotage(
        "counters-of-the-first",
        "integers that differ are taken from the first checkpoint, and nobody asked for that",
        "reshard/arithmetic/average.py",
        "            if other.tobytes() != wanted:\n",
        "            if False:\n",
        ("tests/arithmetic/test_merge.py::test_what_is_no_float_is_equal_or_chosen",),
    ),
    Sabotage(
        "others-change-unseen",
        "a merge is resumed though another checkpoint than the first has changed",
        "reshard/conversion/conversion_key.py",
        "*map(_state_lines, others)",
        "*[]",
        ("tests/arithmetic/test_merge.py::test_a_change_of_any_checkpoint_makes_another_merge",),
    ),
    Sabotage(
        "map-turned-in-windows",
        "elements that a map turns are read in the order of the target",
        "reshard/arithmetic/mapped.py",
        "is_held=_is_turned(p)",
        "is_held=False",
        (
            "tests/arithmetic/test_merge.py::test_a_map_of_a_source_makes_what_it_makes_in_a_conversion",
        ),
    ),
)
