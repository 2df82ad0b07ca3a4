"""Sabotages of what computes tensors of others."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

OPTIONS = "tests/public/test_source_options.py"
SHARING, FORMULA = "reshard/arithmetic/sharing.py", "reshard/arithmetic/codes_formula.py"
PACKED, LEGACY = "reshard/arithmetic/packed.py", "reshard/arithmetic/legacy.py"
OF_PACKED = "tests/arithmetic/test_packed.py::test_plain_formulas"

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
        SHARING,
        "slice(box.start[axis] % size, box.start[axis] % size + box.shape[axis])",
        "slice(0, box.shape[axis])",
        ("tests/arithmetic/test_scaled.py::test_any_grids",),
    ),
    Sabotage(
        "scale-dtype-unseen",
        "products are not rounded to the dtype of the scale",
        FORMULA,
        "numbers.astype(dtype) if dtype.name in SHORT else numbers",
        "numbers",
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
        "parts-of-blocks",
        "scales follow codes that a map parts inside a block",
        "reshard/planning/follow_codes.py",
        "    if any(t and (a % t or (b % t and b != whole)) for a, b, t, whole in sides):",
        "    if False:",
        ("tests/planning/test_keep_pairs.py::test_scales_that_cannot_follow",),
    ),
    Sabotage(
        "scales-whole-beside-cut-codes",
        "a layout that cuts codes leaves their scales whole",
        "reshard/planning/pair_layouts.py",
        "            splits |= _splits(pair, specs, sources, layout)",
        "            pass",
        ("tests/planning/test_keep_pairs.py::test_companions_are_cut_with_their_codes",),
    ),
    Sabotage(
        "codes-too-small",
        "weights that are too large for their scales become other codes",
        "reshard/arithmetic/quantize_like.py",
        "        if lost.any():",
        "        if False:",
        ("tests/arithmetic/test_quantize_like.py::test_refusals",),
    ),
    Sabotage(
        "zero-without-its-sign",
        "the code of -0.0 becomes that of 0.0",
        "reshard/arithmetic/quantize_like.py",
        "    return np.where((weights == 0) & np.isnan(found), weights, found)",
        "    return np.where(weights == 0, 0, found)",
        ("tests/arithmetic/test_quantize_like.py::test_every_code_comes_back",),
    ),
    Sabotage(
        "zero-point-of-another-row",
        "zero points of a window are those of the first row in its word",
        FORMULA,
        "first = box.start[axis] % self.count",
        "first = 0",
        (f"{OF_PACKED}[int4 in groups with zero points-float32]",),
    ),
    Sabotage(
        "divided-for-multiplied",
        "the global scale of ModelOpt is taken for that of compressed-tensors",
        PACKED,
        '.endswith("_global_scale")',
        '.endswith("_scale_2")',
        (f"{OF_PACKED}[ModelOpt-bfloat16]", f"{OF_PACKED}[nvfp4-bfloat16]"),
    ),
    Sabotage(
        "columns-of-awq-in-order",
        "nibbles of AWQ are taken for columns in order",
        LEGACY,
        "(0, 4, 1, 5, 2, 6, 3, 7)",
        "(0, 1, 2, 3, 4, 5, 6, 7)",
        (f"{OF_PACKED}[AWQ-float32]",),
    ),
    Sabotage(
        "zero-points-of-gptq-as-stored",
        "the one that zero points of GPTQ lack is not added",
        LEGACY,
        '("gptq", 4, 1)',
        '("gptq", 4, 0)',
        (f"{OF_PACKED}[GPTQ-float32]",),
    ),
    Sabotage(
        "recorded-options-unused",
        "verify compares codes with the weights that were made of them",
        "reshard/verification/verify.py",
        "        opened[0] = _as_recorded(a, *opened)\n",
        "        pass\n",
        (f"{OPTIONS}::test_verify_computes_what_the_target_records",),
    ),
    Sabotage(
        "options-unknown-to-parts",
        "another process copies the codes that this one dequantises",
        "reshard/conversion/parts/request.py",
        "run.chosen.unlisted, run.chosen.options)",
        "run.chosen.unlisted)",
        (f"{OPTIONS}::test_parts_that_other_processes_join_know_the_options",),
    ),
    Sabotage(
        "config-of-codes-kept",
        "config.json says fp8 of weights that are bfloat16",
        "reshard/formats/safetensors/format.py",
        '    if source.computed.keys() & {"dequantize", "quantize_like"}:\n',
        "    if False:\n",
        (f"{OPTIONS}::test_the_target_has_weights_and_its_files_say_nothing_of_codes",),
    ),
    Sabotage(
        "dora-of-sums",
        "the length of a row is that of all adapters so far",
        "reshard/arithmetic/lora_formula.py",
        "np.square(product + base)",
        "np.square(product + values)",
        ("tests/arithmetic/test_lora_and_peft.py::test_a_merge_is_that_of_peft[two_of_dora]",),
    ),
    Sabotage(
        "rslora-forgotten",
        "the scale of an adapter ignores rsLoRA",
        "reshard/arithmetic/adapters.py",
        "(math.sqrt(size) if config.use_rslora else size)",
        "size",
        ("tests/arithmetic/test_lora_and_peft.py::test_a_merge_is_that_of_peft[rslora]",),
    ),
)
