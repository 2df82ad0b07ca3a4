"""Merged adapters of every dialect over bases of every format, against numpy in float64; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.arithmetic.asked import computed
from reshard.arithmetic.lora import Lora
from reshard.arithmetic.lora_formula import Addend, LoraFormula
from reshard.checkpoint import OpenedCheckpoint
from reshard.conversion.check_target import check_target
from reshard.conversion.convert import convert_targets
from reshard.engine.decode.computed_stream import windows
from reshard.engine.limits import limits_of
from reshard.errors import FormatError, PlanError, ReshardError, StorageError
from reshard.formats.registry import CheckpointPath
from reshard.geometry.grid import Box

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(3)
Q, BIAS, EMBED = "model.layers.0.q.weight", "model.layers.0.q.bias", "model.embed.weight"
PEFT = "base_model.model."


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


BASE = {
    Q: normal(40, 72, dtype=BF16),
    BIAS: normal(40, dtype=BF16),
    EMBED: normal(50, 24, dtype=np.float32),
    "steps": np.arange(3),
}
CODES = BASE[Q].astype(ml_dtypes.float8_e4m3fn)
A, B = normal(4, 72), normal(40, 4)
FACTORS = {f"{PEFT}{Q[:-7]}.lora_A.weight": A, f"{PEFT}{Q[:-7]}.lora_B.weight": B}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 6}


def adapter(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any] | None = CONFIG, **header: str) -> Path:  # fmt: skip
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors", header or None)
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def based(folder: Path, tensors: Mapping[str, np.ndarray] = BASE) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def merged(base: Path, *adapters: Any) -> dict[str, np.ndarray]:
    chosen = computed(CheckpointPath.at(str(base)), lora=adapters)
    return flat(OpenedCheckpoint(chosen).restore())


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, np.ndarray]:
    found = {}
    for name, value in tree.items():
        is_tree = isinstance(value, Mapping)
        found |= flat(value, f"{before}{name}/") if is_tree else {before + name: value}
    return found


def sum_of(weight: np.ndarray, *products: tuple[float, np.ndarray, np.ndarray]) -> np.ndarray:
    total = weight.astype(np.float64)
    for scale, b, a in products:
        total = total + scale * (b.astype(np.float64) @ a.astype(np.float64))
    return total.astype(weight.dtype)


MESH = {"mesh": {"axes": ["x", "y"], "shape": [2, 3]}, "unmatched": "replicate"}


@pytest.mark.parametrize("cut", [["x", "y"], [None, "x"]], ids=["both", "columns"])
@pytest.mark.parametrize(
    "stored",
    [{"to": "orbax", "compression": "zstd"}, {"to": "dcp"}, {"to": "safetensors", "files": "dcp"}],
    ids=["orbax", "dcp", "safetensors"],
)
def test_a_base_of_any_format_and_mesh(
    tmp_path: Path, stored: dict[str, Any], cut: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 256)
    tree: dict[str, Any] = dict(BASE)
    if stored["to"] == "orbax":
        tree = {"model": {"layers": {"0": {"q": {"weight": BASE[Q], "bias": BASE[BIAS]}}}, "embed": {"weight": BASE[EMBED]}}}  # fmt: skip
    reshard.save(tmp_path / "plain", tree)
    layout = {**MESH, "rules": [{"match": "q.weight$", "axes": cut}]}
    reshard.convert(tmp_path / "plain", tmp_path / "base", layout=layout, **stored)
    given = [adapter(tmp_path / "one", FACTORS), f"{adapter(tmp_path / 'two', FACTORS)}=-0.25"]
    chosen = computed(CheckpointPath.at(str(tmp_path / "base")), lora=given)
    checked = check_target(reshard.Target(tmp_path / "made", to="safetensors"), limits_of("64MiB", 1))  # fmt: skip
    convert_targets(chosen, [checked], None, None, None)
    restored = flat(reshard.restore(tmp_path / "made"))
    found = {name.replace("/", "."): value for name, value in restored.items()}
    assert np.array_equal(found[Q], sum_of(BASE[Q], (1.5, B, A), (-0.375, B, A)))
    assert np.array_equal(found[EMBED], BASE[EMBED])


KERNELS = [  # weight, A, B, and the product of both
    ((10, 24), (10, 4), (4, 24), "ar,rb->ab"),
    ((10, 3, 8), (10, 4), (4, 3, 8), "ar,rbc->abc"),
    ((10, 3, 8), (10, 4), (4, 24), "ar,rx->ax"),
    ((3, 8, 10), (3, 8, 4), (4, 10), "abr,rc->abc"),
    ((3, 8, 10), (24, 4), (4, 10), "xr,rc->xc"),
    ((10, 2, 24), (10, 2, 4), (4, 2, 24), "alr,rlb->alb"),
    ((10, 2, 24), (2, 10, 4), (2, 4, 24), "lar,lrb->alb"),
    ((10, 2, 3, 8), (10, 2, 4), (4, 2, 3, 8), "alr,rlbc->albc"),
    ((10, 2, 3, 8), (2, 10, 4), (2, 4, 24), "lar,lrx->alx"),
    ((3, 2, 8, 10), (2, 3, 8, 4), (2, 4, 10), "lbcr,lrd->blcd"),
    ((3, 10, 24), (3, 10, 4), (3, 4, 24), "ear,erb->eab"),
]  # fmt: skip


@pytest.mark.parametrize(("weight", "a", "b", "product"), KERNELS, ids=[k[3] for k in KERNELS])
def test_kernels_of_qwix(tmp_path: Path, weight: Any, a: Any, b: Any, product: str) -> None:
    kernel, of_a, of_b = normal(*weight, dtype=BF16), normal(*a), normal(*b)
    reshard.save(tmp_path / "base", {"params": {"mlp": {"kernel": kernel}}})
    tree = {"params": {"mlp": {"kernel_lora_a": of_a, "kernel_lora_b": of_b}}}
    reshard.save(tmp_path / "lora", tree)
    with pytest.raises(PlanError, match=r"lora stores no scale: .*=SCALE \(lora\)$"):
        merged(tmp_path / "base", tmp_path / "lora")
    found = merged(tmp_path / "base", f"{tmp_path / 'lora'}=2")
    change = np.einsum(product, of_a.astype(np.float64), of_b.astype(np.float64)).reshape(weight)
    assert np.array_equal(found["params/mlp/kernel"], (kernel + 2 * change).astype(BF16))


UNET = "down_blocks.0.attentions.1.to_q.weight"
DIALECTS: dict[str, tuple[list[str], float, dict[str, str]]] = {
    "diffusers": ([f"unet.{UNET[:-7]}.lora_A.weight", f"unet.{UNET[:-7]}.lora_B.weight"], 1, {}),
    "diffusers before peft": ([f"unet.{UNET[:-7]}.lora.down.weight", f"unet.{UNET[:-7]}.lora.up.weight"], 1, {}),
    "with its config": (
        [f"unet.{UNET[:-7]}.lora_A.weight", f"unet.{UNET[:-7]}.lora_B.weight"],
        3.5,
        {"lora_adapter_metadata": json.dumps({"unet.r": 4, "unet.lora_alpha": 14})},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_adapters_of_diffusers(tmp_path: Path, dialect: str) -> None:
    names, scale, header = DIALECTS[dialect]
    given = adapter(tmp_path / "lora", dict(zip(names, [A, B], strict=True)), None, **header)
    base = based(tmp_path / "base", {UNET: BASE[Q]})
    assert np.array_equal(merged(base, given)[UNET], sum_of(BASE[Q], (scale, B, A)))
    assert np.array_equal(merged(base, f"{given}=2")[UNET], sum_of(BASE[Q], (2 * scale, B, A)))


def test_variables_of_nnx_and_files_of_a_trainer(tmp_path: Path) -> None:
    reshard.save(tmp_path / "base", {"mlp": {"kernel": {"value": BASE[Q].T.copy()}}})
    factors = {"kernel_lora_a": {"value": A.T.copy()}, "kernel_lora_b": {"value": B.T.copy()}}
    reshard.save(tmp_path / "lora", {"mlp": factors})
    found = merged(tmp_path / "base", f"{tmp_path / 'lora'}=1.5")
    assert np.array_equal(found["mlp/kernel/value"], sum_of(BASE[Q], (1.5, B, A)).T)
    given = adapter(tmp_path / "checkpoint-500", FACTORS)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "README.md"):
        (given / name).write_bytes(b"of the trainer")
    assert np.array_equal(merged(based(tmp_path / "hf"), given)[Q], sum_of(BASE[Q], (1.5, B, A)))


def test_a_record_names_the_adapter_again(tmp_path: Path) -> None:
    """A name that ends like a scale is written with one."""
    adapters = tmp_path / "lora", f"{tmp_path}/r=8=1", f"{tmp_path / 'lora'}=0.5"
    values = [str(tmp_path / "lora"), f"{tmp_path}/r=8=1.0", f"{tmp_path / 'lora'}=0.5"]
    assert Lora.asked(adapters).option == ("lora", values)
    assert Lora.asked(values).text == Lora.asked(adapters).text


def test_a_trained_tensor_comes_first_and_is_cast(tmp_path: Path) -> None:
    trained = {PEFT + "model.embed.base_layer.weight": normal(50, 24, dtype=np.float64), PEFT + BIAS: BASE[BIAS] + BASE[BIAS]}  # fmt: skip
    of_embed = {PEFT + "model.embed.lora_embedding_A": normal(4, 50), PEFT + "model.embed.lora_embedding_B": normal(24, 4)}  # fmt: skip
    found = merged(based(tmp_path / "base"), adapter(tmp_path / "lora", {**trained, **of_embed}))
    base, a, b = *list(trained.values())[:1], *of_embed.values()
    assert np.array_equal(found[EMBED], (base + 1.5 * (b.astype(float) @ a).T).astype(np.float32))
    assert np.array_equal(found[BIAS], BASE[BIAS] + BASE[BIAS])
    assert np.array_equal(found[Q], BASE[Q])


def test_codes_are_made_weights_first(tmp_path: Path) -> None:
    scale = np.array([[0.25]], np.float32)
    base = based(tmp_path / "base", {Q: CODES, f"{Q}_scale_inv": scale})
    given = adapter(tmp_path / "lora", FACTORS)
    reshard.convert(base, tmp_path / "made", dequantize="bfloat16", lora=[given], to="orbax")
    weight = (CODES.astype(np.float32) * 0.25).astype(BF16)
    found = flat(reshard.restore(tmp_path / "made"))
    assert [*found] == [Q]
    assert np.array_equal(found[Q], sum_of(weight, (1.5, B, A)))
    assert reshard.verify(base, tmp_path / "made", dequantize="bfloat16", lora=[given]).equal


@pytest.mark.parametrize("most", [1, 100, 1 << 16])
@pytest.mark.parametrize("rank", [1, 4, 33, 300])
def test_windows_of_any_size_have_the_same_bits(rank: int, most: int) -> None:
    """In float64, where each bit of the product is seen."""
    shape = (37, 530)
    operands = [normal(*shape, dtype=np.float64), normal(37, rank), normal(rank, 530)]
    sizes = {"o": 37, "i": 530, "r": rank}
    addend = Addend("oi", sizes, 0.7, {"b": ("o", "r"), "a": ("r", "i")})
    formula = LoraFormula(shape, (addend,))

    def computed_in(boxes: list[Box]) -> np.ndarray:
        out = np.empty(shape)
        calculation = formula.opened("", 0)
        for box in boxes:
            part = np.empty(box.shape)
            parts = [each[b.slices] for each, b in zip(operands, formula.boxes(box), strict=True)]
            calculation.compute(box, parts, part)
            out[box.slices] = part
        return out

    whole = computed_in([Box.full(shape)])
    wanted = operands[0] + 0.7 * (operands[1].astype(float) @ operands[2])
    assert np.allclose(whole, wanted, rtol=1e-12, atol=1e-12)
    parts = [Box((0, 0), (19, 101)), Box((0, 101), (19, 530)), Box((19, 0), (37, 530))]
    cut = [window for part in parts for window in windows(part, (), most)] if most > 1 else parts
    assert np.array_equal(computed_in(cut), whole)


REFUSED: dict[str, tuple[dict[str, Any], type[ReshardError], str]] = {
    "another base": (
        {"tensors": {k.replace("layers.0", "layers.7"): v for k, v in FACTORS.items()}},
        FormatError,
        r"lora has '\S+layers.7.q.lora_A.weight', but \S+base has no tensor 'model.layers.7.q.weight'; the nearest name is "
        r"'model.layers.0.q.weight'; give the checkpoint that the adapter was trained on, with its names \(map\), in bfloat16, float16, float32, float64 \(cast\)$",
    ),
    "another shape": (
        {"tensors": {k: v[:, :3] if k.endswith("A.weight") else v for k, v in FACTORS.items()}},
        FormatError,
        r"lora_A.weight', float32 \[4, 3\] and '\S+lora_B.weight', float32 \[40, 4\] and the rank 4, which does not fit "
        r"'model.layers.0.q.weight' of \S+base, bfloat16 \[40, 72\]; give the checkpoint",
    ),
    "another rank": ({"config": {**CONFIG, "r": 8}}, FormatError, r"and the rank 8, which does not fit '"),
    "no rank": ({"config": {**CONFIG, "r": 0}}, FormatError, r"lora has the rank 0 and the scale 6.0 for 'model.layers.0.q': expected a rank of 1 to 1,048,576, and a finite scale; restore"),
    "no scale": ({"config": {**CONFIG, "lora_alpha": float("inf")}}, FormatError, r"has the rank 4 and the scale inf for 'model.layers.0.q': expected a rank"),
    "two tensors for one factor": (
        {"tensors": {**FACTORS, f"{PEFT}model.layers.0.q.lora.down.weight": A}},
        FormatError,
        r"lora has both '\S+lora.down.weight' and '\S+lora_A.weight'; remove the one that is not meant$",
    ),
    "no tensors": ({"tensors": {}}, FormatError, r"lora has no tensors; give the folder of an adapter \(lora\)$"),
    "a magnitude of another shape": (
        {"tensors": {**FACTORS, f"{PEFT}model.layers.0.q.lora_magnitude_vector": normal(39)}},
        FormatError,
        r"'\S+lora_magnitude_vector', float32 \[39\] and the rank 4, which does not fit 'model.layers.0.q.weight' of ",
    ),
    "factors of integers": (
        {"tensors": {k: v.astype(np.int32) for k, v in FACTORS.items()}},
        FormatError,
        r"'\S+lora_B.weight', int32 \[40, 4\] and the rank 4, which does not fit 'model.layers.0.q.weight' of ",
    ),
    "one factor": (
        {"tensors": {k: v for k, v in FACTORS.items() if "lora_B" in k}},
        FormatError,
        r"lora has '\S+lora_B.weight', but not the factor A of 'model.layers.0.q'; restore the adapter from a copy$",
    ),
    "a checkpoint": ({"tensors": {Q: BASE[Q]}, "config": None}, FormatError, rf"lora has '{Q}', which is no tensor of an adapter: expected names that end in "),
    "an unknown tensor": (
        {"tensors": {**FACTORS, f"{PEFT}model.layers.0.q.lora_C.weight": A}},
        FormatError,
        r"has '\S+lora_C.weight', but \S+ has no tensor 'model.layers.0.q.lora_C.weight'",
    ),
    "a bias that the base lacks": (
        {"tensors": {PEFT + "model.embed.lora_A.weight": normal(4, 24), PEFT + "model.embed.lora_B.weight": normal(50, 4), PEFT + "model.embed.lora_B.bias": normal(50)}},
        FormatError,
        r"has no tensor 'model.embed.bias'; the nearest name is ",
    ),
    "a trained tensor of another shape": (
        {"tensors": {**FACTORS, PEFT + EMBED: normal(51, 24)}},
        FormatError,
        r"has '\S+embed.weight', float32 \[51, 24\], which does not fit 'model.embed.weight' of \S+, float32 \[50, 24\]",
    ),
    "another method": ({"config": {**CONFIG, "peft_type": "LOHA"}}, FormatError, r"adapter_config.json has peft_type: LOHA, so that a merged weight is more than the base and a product of two factors; merge it with peft$"),
    "copied layers": (
        {"config": {**CONFIG, "layer_replication": [[0, 4], [2, 5]]}},
        FormatError,
        r"adapter_config.json has layer_replication: \[\[0, 4\], \[2, 5\]\], so that a merged weight is more than the base and a product of two factors; merge",
    ),
    "a base that was changed": (
        {"config": {**CONFIG, "init_lora_weights": "pissa_niter_4"}},
        FormatError,
        r"has init_lora_weights: pissa_niter_4, so that a merged weight is more than ",
    ),
    "no config": ({"config": {"r": "four"}}, FormatError, r"adapter_config.json is no config of an adapter: Expected `int`, got `str`"),
    "a pattern that is none": ({"config": {**CONFIG, "alpha_pattern": {"(": 2}}}, FormatError, r"the pattern '\(' of adapter_config.json is no regular expression"),
    "a rank that no float holds": (
        {"config": CONFIG | {"r": 10**400, "use_rslora": True}},
        FormatError,
        r"lora has the rank 10{400} and the scale \S+ for 'model.layers.0.q': expected a rank of 1 to 1,048,576, and a finite scale; restore",
    ),
    "a scale that is none": ({"scale": "=nan"}, PlanError, r"the scale of '\S+lora=nan' should be a finite number \(lora\)$"),
    "codes": (
        {"base": {Q: CODES, f"{Q}_scale_inv": normal(1, 1)}},
        FormatError,
        r"does not fit 'model.layers.0.q.weight' of \S+base, float8_e4m3fn \[40, 72\]; make weights of its codes, fp8, a scale for each, first "
        r"\(dequantize\), or give the checkpoint that the adapter was trained on",
    ),
    "packed codes": (
        {"base": {"model.layers.0.q.weight_packed": np.zeros((40, 9), np.int32), "model.layers.0.q.weight_scale": normal(40, 9, dtype=BF16)}},
        FormatError,
        r"has no tensor 'model.layers.0.q.weight'; the nearest name is '\S+weight_scale'; make weights of its codes, packed integers, first \(dequantize\)",
    ),
    "float8": ({"base": {Q: CODES}}, FormatError, r"does not fit '\S+' of \S+base, float8_e4m3fn .*, in bfloat16, float16, float32, float64 \(cast\)$"),
    "integers": ({"base": {Q: np.zeros((40, 72), np.int16)}}, FormatError, r"does not fit '\S+' of \S+base, int16 \[40, 72\]; give "),
    "experts that fit twice": (
        {
            "base": {"moe.up": normal(3, 8, 8)},
            "tensors": {PEFT + "moe.lora_A.weight": normal(12, 8), PEFT + "moe.lora_B.weight": normal(8, 12)},
            "config": {**CONFIG, "target_parameters": ["moe.up"]},
        },
        FormatError,
        r"the factors of 'moe' in \S+lora fit the parameters that \S+base has there \(moe.up\) in 2 ways: expected one; merge it with peft, or give the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    options, kind, text = REFUSED[case]
    base = tmp_path / "base"
    based(base, options.get("base", BASE))
    given = adapter(tmp_path / "lora", options.get("tensors", FACTORS), options.get("config", CONFIG))  # fmt: skip
    with pytest.raises(kind, match=text):
        merged(base, f"{given}{options.get('scale', '')}")


@pytest.mark.parametrize("option", ["lora", "quantize_like"])
def test_a_target_apart_from_all_that_is_read(tmp_path: Path, option: str) -> None:
    """Also with overwrite, and before anything is read or written."""
    base = based(tmp_path / "base", {Q: CODES.astype(BF16)})
    read = tmp_path / "at" / "read"
    if option == "lora":
        adapter(read, FACTORS)
    else:
        reshard.convert(based(tmp_path / "like", {Q: CODES, f"{Q}_scale": np.ones((40, 1), "f4")}), read)  # fmt: skip
    more: dict[str, Any] = {option: [read] if option == "lora" else read, "overwrite": True}
    before = sorted(tmp_path.rglob("*"))
    for target, text in (
        (read, f"the target {str(read)!r} is the source itself; choose another target"),
        (read / "x", f"the target {str(read / 'x')!r} is inside the source {str(read)!r}; choose a target outside of it"),
        (read.parent, f"the source {str(read)!r} is inside the target {str(read.parent)!r}; choose another target"),
    ):  # fmt: skip
        for call in (reshard.plan, reshard.convert):
            with pytest.raises(StorageError) as error:
                call(base, target, **more)
            assert str(error.value) == text
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("error")
def test_a_base_with_nan_of_any_bits_gives_no_warning(tmp_path: Path) -> None:
    signalling = np.full((40, 72), 0x7F800001, np.uint32).view(np.float32)
    given = adapter(tmp_path / "lora", FACTORS)
    assert np.isnan(merged(based(tmp_path / "base", {Q: signalling}), given)[Q]).all()


@pytest.mark.parametrize("given", ["adapter", "", Path("adapter"), 5, {"adapter": 0.5}, {"adapter"}, np.array(["a"])])  # fmt: skip
def test_adapters_that_are_no_list(tmp_path: Path, given: Any) -> None:
    with pytest.raises(PlanError) as error:
        reshard.inspect(based(tmp_path / "base"), lora=given)
    assert str(error.value) == f"lora is {given!r}; expected a list with the path of each adapter, such as ['adapter', 'other=0.5']"  # fmt: skip
