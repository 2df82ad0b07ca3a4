"""Packed codes are dequantised to the weights that plain formulas and their own libraries give, in any layout and any window."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.arithmetic.asked import computed
from reshard.arithmetic.codes_formula import CodesFormula
from reshard.arithmetic.legacy import FlatFormula
from reshard.checkpoint import OpenedCheckpoint
from reshard.conversion.check_target import check_target
from reshard.conversion.convert import convert_targets
from reshard.engine.limits import limits_of
from reshard.errors import CorruptError, FormatError, PlanError
from reshard.formats.registry import CheckpointPath, open_reader
from tests.arithmetic.packed_cases import (
    BF16,
    E2M1,
    F32,
    LEGACY,
    NF4,
    PACKED,
    Array,
    Case,
    L,
    gptq,
    integers,
    modelopt,
    mxfp4,
    nf4,
    packed_bytes,
    write,
)
from tests.campaigns import examples
from tests.oracles.oracle import Oracle

CASES = {**PACKED, **LEGACY}
FORMULAS = (CodesFormula, FlatFormula)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts small tensors as large ones are cut, and computes few weights at once."""
    monkeypatch.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 512)
    for formula in FORMULAS:
        monkeypatch.setattr(formula, "window_elements", 40)


def chosen(folder: Path, dtype: str) -> CheckpointPath:
    return computed(CheckpointPath.at(str(folder)), dequantize=dtype)


def opened(folder: Path, dtype: str) -> OpenedCheckpoint:
    return OpenedCheckpoint(chosen(folder, dtype))


def flat(tree: Mapping[str, Any]) -> dict[str, Array]:
    found = {}
    for name, value in tree.items():
        inner = flat(value) if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{n}".rstrip("."): a for n, a in inner.items()}
    return found


def expected(case: Case, dtype: str) -> dict[str, Array]:
    """The weights, rounded unless they are stored as they are."""
    return {
        n: w if w is case.tensors.get(n) else rounded(w, dtype) for n, w in case.weights.items()
    }


def rounded(weight: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return weight.astype(F32).astype(getattr(ml_dtypes, dtype, dtype))


def same(a: Array, b: Array) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_plain_formulas(make: Callable[[Any], Case], dtype: str, tmp_path: Path) -> None:
    case = make(np.random.default_rng(3))
    source = opened(write(tmp_path / "a", case.tensors, case.config), dtype)
    found = flat(source.restore())
    assert set(found) == set(case.weights)
    for name, weight in expected(case, dtype).items():
        assert same(found[name], weight), name
    name, whole = max(found.items(), key=lambda item: item[1].size)
    part = b"".join(source.stream(name, ",".join(["1:3", *["2:5"] * (whole.ndim - 1)])))
    assert part == whole[(slice(1, 3), *[slice(2, 5)] * (whole.ndim - 1))].tobytes()


TARGETS: list[dict[str, Any]] = [{"to": "orbax", "compression": "zstd"}, {"to": "orbax"}, {"to": "dcp"}, {"to": "safetensors"}]  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(list(CASES)), st.integers(0, 9), st.randoms(use_true_random=False),
    st.sampled_from(TARGETS), st.sampled_from(TARGETS), st.integers(1, 500),
)  # fmt: skip
def test_any_layouts(
    name: str, seed: int, random: Any, stored: Any, target: Any, most: int
) -> None:
    """Codes in any grid, of which every operand is cut in its own way, are converted to weights in any other."""
    case = CASES[name](np.random.default_rng(seed))

    def layout(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        rules = []
        for tensor, shape in shapes.items():
            axes = [random.choice(["x", "y", None]) for _ in shape]
            fits = [
                a if a not in axes[:d] and a and shape[d] % {"x": 2, "y": 3}[a] == 0 else None
                for d, a in enumerate(axes)
            ]
            rules.append({"match": f"^{tensor}$".replace(".", r"\."), "axes": fits})
        return {
            "mesh": {"axes": ["x", "y"], "shape": [2, 3]},
            "rules": rules,
            "unmatched": "replicate",
        }

    with tempfile.TemporaryDirectory() as room, pytest.MonkeyPatch.context() as patch:
        for formula in FORMULAS:
            patch.setattr(formula, "window_elements", most)
        folder = Path(room)
        write(folder / "a", case.tensors, case.config)
        try:
            reshard.convert(
                folder / "a",
                folder / "b",
                layout=layout({n: a.shape for n, a in case.tensors.items()}),
                **stored,
            )
        except PlanError as error:  # codes and scales stay together
            assert "inside a block" in str(error) or "is cut with its codes" in str(error)
            reshard.convert(folder / "a", folder / "b", **stored)
        (folder / "b" / "config.json").write_bytes((folder / "a" / "config.json").read_bytes())
        limits = limits_of("64MiB", 1)
        shapes = {n: w.shape for n, w in case.weights.items()}
        checked = check_target(
            reshard.Target(folder / "c", layout=layout(shapes), **target), limits
        )
        convert_targets(chosen(folder / "b", "bfloat16"), [checked], None, None, None)
        found = flat(reshard.restore(folder / "c"))
    for tensor, weight in expected(case, "bfloat16").items():
        assert same(found[tensor], weight), tensor


def test_special_scales(tmp_path: Path) -> None:
    """0, NaN and infinity are taken as they are, and the exponent 255 is NaN; every code meets each."""
    codes = np.tile(np.arange(16), (5, 2))
    scales = np.array([0, 1, 127, 254, 255], np.uint8)[:, None]
    tensors = {f"{L}.weight_packed": packed_bytes(codes), f"{L}.weight_scale": scales}
    found = flat(opened(write(tmp_path / "mx", tensors, {}), "bfloat16").restore())[f"{L}.weight"]
    factors = np.array([2.0**-127, 2.0**-126, 1, 2.0**127, np.nan])[:, None]
    assert same(
        found, rounded(np.where(np.isnan(factors), np.nan, E2M1[codes] * factors), "bfloat16")
    )

    case = integers(np.random.default_rng(0), (5, 32), group=16)
    special = np.array([[0, 1], [np.nan, 1], [np.inf, 1], [-np.inf, 1], [1e-40, 1]], BF16)
    tensors = {**case.tensors, f"{L}.weight_scale": special}
    found = flat(opened(write(tmp_path / "int", tensors, case.config), "float32").restore())[
        f"{L}.weight"
    ]
    words = case.tensors[f"{L}.weight_packed"].view(np.uint8)
    numbers = np.stack([words & 15, words >> 4], -1).reshape(5, 32).astype(np.float64) - 8
    with np.errstate(all="ignore"):
        products = numbers * np.repeat(special, 16, -1).astype(np.float64)
        products[np.isnan(products)] = np.nan
        assert same(found, products.astype(F32).astype(BF16).astype(F32))


@pytest.mark.xdist_group("torch")
def test_referees(torch: Oracle, tmp_path: Path) -> None:
    """compressed-tensors, its converters of AWQ and ModelOpt, and transformers give the same bits."""
    kinds = {
        "int4 in groups": "pack-quantized", "int4 in groups, float16": "pack-quantized", "int4 in groups, float32": "pack-quantized",
        "int4 in groups with zero points": "pack-quantized", "int4 in groups of 24": "pack-quantized", "int4 in rows": "pack-quantized",
        "int4 in rows with zero points": "pack-quantized", "int8 in groups": "pack-quantized",
        "int8 in rows with zero points": "pack-quantized", "mxfp4": "mxfp4-pack-quantized", "mxfp8": "mxfp8-quantized",
        "nvfp4": "nvfp4-pack-quantized", "gpt-oss": "gpt-oss", "AWQ": "awq", "ModelOpt, a power of two": "modelopt",
    }  # fmt: skip
    for name in kinds:
        case = CASES[name](np.random.default_rng(11))
        write(tmp_path / name, case.tensors, case.config)
    answers = torch.ask("packed_weights", folder=str(tmp_path), kinds=kinds)
    assert answers.keys() == kinds.keys()
    for name, weights in answers.items():
        found = {n: answered(tmp_path / name, n, a.dtype) for n, a in weights.items()}
        assert all(same(found[n], a) for n, a in weights.items()), name
        assert found, name


def answered(folder: Path, name: str, dtype: np.dtype[Any]) -> Array:
    """A weight in float32, or the bits of bfloat16, as the referee has it."""
    source = opened(folder, "bfloat16" if dtype == np.uint16 else "float32")
    return flat(source.restore())[name].view(dtype)


@pytest.mark.xdist_group("torch")
def test_bitsandbytes(torch: Oracle, tmp_path: Path) -> None:
    """Checkpoints that it writes become the weights that it computes."""
    answers = torch.ask("save_bitsandbytes", folder=str(tmp_path))
    assert len(answers) == 5
    for name, weight in answers.items():
        found = flat(
            opened(
                tmp_path / name, "bfloat16" if weight.dtype == np.uint16 else "float32"
            ).restore()
        )
        assert same(found["layer.weight"].view(weight.dtype), weight), name


def changed(case: Case, config: Mapping[str, Any] | None = None, **tensors: Array | None) -> Case:
    """A case with other companions of ``L``, by the ends of their names with ``_`` for dots; None leaves one out."""
    made = dict(case.tensors)
    for end, array in tensors.items():
        name = f"{L}.{end}"
        made.pop(name, None)
        if array is not None:
            made[name] = array
    return case._replace(tensors=made, config=case.config if config is None else config)


RNG = np.random.default_rng(5)
INT4, ROWS = integers(RNG, (6, 64), group=32), integers(RNG, (5, 29))
REFUSED: dict[str, tuple[Case, str]] = {
    "any order": (
        changed(INT4, weight_g_idx=np.arange(64, dtype=np.int32)[::-1] // 32),
        "its columns are in groups of any order (weight_g_idx)",
    ),
    "3 bits": (
        changed(ROWS, {"config_groups": {"a": {"weights": {"num_bits": 3}}}}, weight_packed=np.zeros((5, 3), np.int32)),
        "its codes have 3 bits, and only 4 and 8 are known",
    ),
    "another shape": (
        changed(ROWS, weight_shape=np.array([5, 99])),
        "weight_shape is [5, 99], which does not fit words of the shape [5, 4]",
    ),
    "no shape": (changed(ROWS, weight_shape=None), "the number of its columns is not known without weight_shape"),
    "zero points that are missing": (
        changed(integers(RNG, (8, 64), group=32, zeros=True), weight_zero_point=None),
        "the config has 'symmetric' false, but it has no zero points",
    ),
    "GPTQ without its order": (
        changed(gptq(RNG, order="any"), g_idx=None),
        "the config has 'desc_act', but it has no g_idx",
    ),
    "zero points": (
        changed(INT4, weight_zero_point=np.zeros((6, 2), np.int32)),
        "'model.layers.0.mlp.up_proj.weight_zero_point' is int32 of shape [6, 2], which does not fit codes of int32 and of shape [6, 8]",
    ),
    "int4 in bytes": (
        changed(INT4, {}, weight_packed=np.zeros((6, 32), np.uint8)),
        "codes of uint8 with a scale of bfloat16 are not known",
    ),
    "nvfp4 with two scales": (
        changed(modelopt(RNG), weight_scale_2=np.ones(2, F32)),
        "'model.layers.0.mlp.up_proj.weight_scale_2' is float32 of shape [2], which does not fit codes of uint8 and of shape [6, 32]",
    ),
    "another companion": (
        changed(PACKED["nvfp4"](RNG), weight_zero_point=np.zeros((6, 4), np.int8)),
        "nothing is known to do with 'model.layers.0.mlp.up_proj.weight_zero_point' for nvfp4, blocks of 16",
    ),
    "AWQ of another version": (
        changed(LEGACY["AWQ"](RNG), {"quant_method": "awq", "version": "gemv"}),
        "it has 4 bits in the format 'AWQ gemv'; known are 4 of 'AWQ gemm', and 4 and 8 of 'gptq' and 'gptq_v2'",
    ),
    "AWQ without zero points": (
        changed(LEGACY["AWQ"](RNG), qzeros=None),
        "it has no qzeros of int32 and of the shape [4, 3]",
    ),
    "GPTQ of another format": (
        changed(gptq(RNG), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
        "it has 4 bits in the format 'marlin'; known are 4 of 'AWQ gemm', and 4 and 8 of 'gptq' and 'gptq_v2'",
    ),
    "GPTQ of 3 bits": (
        changed(gptq(RNG), {"quant_method": "gptq", "bits": 3}),
        "it has 3 bits in the format 'gptq'; known are 4 of 'AWQ gemm', and 4 and 8 of 'gptq' and 'gptq_v2'",
    ),
    "GPTQ with a short g_idx": (
        changed(gptq(RNG), g_idx=np.zeros(63, np.int32)),
        "'model.layers.0.mlp.up_proj.g_idx' is int32 of shape [63], which does not fit codes of int32 and of shape [8, 24]",
    ),
    "no state": (
        changed(nf4(RNG), **{"weight.quant_state.bitsandbytes__nf4": None}),
        "it has no quant_state, which gives shape and blocks",
    ),
    "a state without shape": (
        changed(nf4(RNG), **{"weight.quant_state.bitsandbytes__nf4": np.frombuffer(b'{"blocksize":64}', np.uint8)}),
        "'model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4' is no quant_state: Object missing required field `shape`",
    ),
    "a table of 8": (
        changed(nf4(RNG), **{"weight.quant_map": NF4[:8]}),
        "for its quant_state it should have code of float32 and of the shape [16]",
    ),
    "codes of another shape": (
        changed(nf4(RNG, (6, 48)), weight=np.zeros((145, 1), np.uint8)),
        "for its quant_state it should have codes of uint8 and of the shape [144, 1]",
    ),
    "MLX": (
        Case({f"{L}.weight": np.zeros((4, 8), np.uint32), f"{L}.scales": np.ones((4, 1), BF16), f"{L}.biases": np.ones((4, 1), BF16)}, {}, {}),
        "no decoder is known for MLX",
    ),
    "torchao": (
        Case({"p._weight_qdata": np.zeros((64, 32), np.uint8), "p._weight_scale": np.ones((2, 64), BF16)}, {}, {}),
        "no decoder is known for packed by torchao",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(case: Case, text: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", case.tensors, case.config)
    with pytest.raises(PlanError) as caught:
        opened(folder, "bfloat16")
    assert (
        f" cannot be dequantised: {text}; leave this out, and codes and scales are kept whole"
        in str(caught.value)
    )
    assert str(caught.value).startswith(("'p._weight_qdata'", f"'{L}."))


@pytest.mark.filterwarnings("error")
def test_a_state_that_is_no_text(tmp_path: Path) -> None:
    case = changed(nf4(RNG), **{"weight.quant_state.bitsandbytes__nf4": np.full(4, np.nan, "f4")})
    with pytest.raises(CorruptError, match=r"weight\.quant_state\.bitsandbytes__nf4, line 1, column 1: expected JSON, found: a NUL byte"):  # fmt: skip
        opened(write(tmp_path / "a", case.tensors, case.config), "bfloat16")


@pytest.mark.parametrize("name", ["gpt-oss", "nf4", "Kimi-K2", "GPTQ"])
def test_halves(name: str, tmp_path: Path) -> None:
    """Codes without scales, and companions without codes, are refused."""
    case = CASES[name](np.random.default_rng(4))
    codes, *others = [
        n for n in case.tensors if n not in case.weights or case.tensors[n].dtype == np.uint8
    ]
    for number, gone in enumerate([[codes], others]):
        left = {n: a for n, a in case.tensors.items() if n not in gone}
        if name == "nf4" and number:
            continue  # bytes alone may be anything
        with pytest.raises(PlanError, match="look for files that are missing, or leave this out"):
            opened(
                write(tmp_path / str(number), {**left, "kept": np.ones(1)}, case.config), "bfloat16"
            )


def test_a_group_that_is_not_there(tmp_path: Path) -> None:
    case = changed(gptq(RNG, order="any"), g_idx=np.full(64, 4, np.int32))
    source = opened(write(tmp_path / "a", case.tensors, case.config), "bfloat16")
    with pytest.raises(
        FormatError,
        match=r"'model.layers.0.mlp.up_proj.g_idx' should have groups from 0 to 3, but has 4 to 4; restore the file from a copy",
    ):
        source.restore()


def test_mixed_groups(tmp_path: Path) -> None:
    """Bits follow from shapes where a config has several groups: no shape is read but for rows."""
    rng = np.random.default_rng(1)
    cases = {
        "a": integers(rng, (6, 64), group=32),
        "b": integers(rng, (6, 64), bits=8, group=32),
        "c": integers(rng, (6, 32), bits=8),
    }
    tensors = {n.replace(L, key): a for key, case in cases.items() for n, a in case.tensors.items()}
    del tensors["a.weight_shape"], tensors["b.weight_shape"]
    groups = {key: next(iter(case.config["config_groups"].values())) for key, case in cases.items()}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    found = flat(opened(write(tmp_path / "a", tensors, config), "float32").restore())
    for key, case in cases.items():
        assert same(found[f"{key}.weight"], case.weights[f"{L}.weight"].astype(F32)), key


def test_the_report_of_exactness(tmp_path: Path) -> None:
    from reshard.arithmetic.dequantize import dequantized

    for make, exact in (
        (mxfp4, True),
        (PACKED["gpt-oss"], True),
        (PACKED["nvfp4"], False),
        (PACKED["int4 in rows"], False),
    ):
        case = make(np.random.default_rng(2))
        folder = write(
            tmp_path / str(case.config["quant_method"]) / str(len(case.tensors)),
            case.tensors,
            case.config,
        )
        reader = open_reader(chosen(folder, "bfloat16"))
        assert {flag for _, flag in dequantized(reader).values()} == {exact}
