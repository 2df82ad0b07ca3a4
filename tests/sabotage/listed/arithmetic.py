"""Sabotages of what computes tensors of others."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

MERGE = "reshard/arithmetic/merge.py"
SCALED = "reshard/arithmetic/scaled.py"

SABOTAGES = (
    Sabotage(
        "operands-uncompared",
        "a flipped scale is dequantised, though its digest is recorded",
        "reshard/conversion/prove.py",
        "            if recorded := holder.tensors[name].digest:\n",
        "            if recorded := None:\n",
        ("tests/formats/test_computed.py::test_a_flip_of_an_operand_is_found_by_its_digest",),
    ),
    Sabotage(
        "windows-in-part-lost",
        "what a reader leaves of a window is computed anew, from the next one",
        "reshard/engine/decode/computed_stream.py",
        "            out[:count], self._rest = self._rest[:count], self._rest[count:]\n",
        '            out[:count], self._rest = self._rest[:count], memoryview(b"")\n',
        ("tests/formats/test_computed.py::test_a_chunk_is_read_in_any_steps",),
    ),
    Sabotage(
        "computation-not-in-the-key",
        "a target that was computed passes for one that was not",
        "reshard/conversion/conversion_key.py",
        "    settings |= {each.option[0]: each.text for each in computed}\n",
        "",
        ("tests/formats/test_computed.py::test_the_key_names_what_is_computed",),
    ),
    Sabotage(
        "block-from-its-window",
        "blocks of scales are counted from the start of each window",
        SCALED,
        "np.arange(box.start[axis], box.stop[axis]) // size",
        "np.arange(box.stop[axis] - box.start[axis]) // size",
        ("tests/arithmetic/test_scaled.py::test_any_grids",),
    ),
    Sabotage(
        "scale-dtype-unseen",
        "products are not rounded to the dtype of the scale",
        SCALED,
        '        if self.scale in ("bfloat16", "float16"):\n',
        "        if False:\n",
        ("tests/arithmetic/test_scaled.py::test_every_code[int8-bfloat16-float32]",),
    ),
    Sabotage(
        "scale-without-codes",
        "scales without codes are taken for weights",
        "reshard/arithmetic/refuse_unknown.py",
        "[s for s in others if _SCALES.search(s.name)]",
        "[]",
        (
            "tests/arithmetic/test_dequantize.py::test_what_is_not_known_is_refused[no codes of a scale]",
        ),
    ),
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
        "key=lambda i: (self.texts[i], values[i])",
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
        MERGE,
        "                yield from file.state(OF_RECORDS)\n",
        '                yield ""\n',
        ("tests/arithmetic/test_merge.py::test_a_change_of_any_checkpoint_makes_another_merge",),
    ),
    Sabotage(
        "map-turned-in-windows",
        "elements that a map turns are read in the order of the target",
        "reshard/arithmetic/mapped.py",
        "is_held=_is_turned(piece)",
        "is_held=False",
        (
            "tests/arithmetic/test_merge.py::test_a_map_of_a_source_makes_what_it_makes_in_a_conversion",
        ),
    ),
)
