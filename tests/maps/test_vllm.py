"""The recipes for vLLM make the files that a second program makes, which does what vLLM's weight loaders do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard import rules
from reshard.cli.app import run
from reshard.errors import PlanError
from tests.maps.vllm_ranks import Array, state_of_rank
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

SIZES = {
    "dtype": "float16", "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 4,
    "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {**SIZES, "model_type": "llama", "num_key_value_heads": 4}
QWEN = {**SIZES, "model_type": "qwen3", "num_key_value_heads": 2}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "vllm-llama3": {**LLAMA, "tie_word_embeddings": False},
    "vllm-llama3-tied": {**LLAMA, "tie_word_embeddings": True},
    "vllm-qwen3": {**QWEN, "tie_word_embeddings": False},
    "vllm-qwen3-tied": {**QWEN, "tie_word_embeddings": True},
}
EXPERTS = {
    **QWEN, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
NAMES = "model-rank-{rank}-part-0.safetensors"


@pytest.fixture(scope="module")
def models(torch: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers for each recipe, and one with experts. Their norms are not all 1."""
    root = tmp_path_factory.mktemp("models")
    torch.ask("save_described", configs={**CONFIGS, "experts": EXPERTS}, folder=str(root))
    random = np.random.default_rng(3)
    for name in CONFIGS:
        file = root / name / "model.safetensors"
        tensors = load_file(file)
        for tensor in (each for each in tensors if each.endswith("norm.weight")):
            noise = random.standard_normal(tensors[tensor].shape)
            tensors[tensor] = noise.astype(tensors[tensor].dtype)
        save_file(tensors, file, {"format": "pt"})
    return root


def mesh_of(name: str, ranks: int) -> str:
    kv = min(ranks, CONFIGS[name]["num_key_value_heads"])
    return f"kv={kv},copies={ranks // kv}"


def given(name: str, ranks: int) -> dict[str, Any]:
    """The arguments by which a model becomes the files of so many ranks."""
    sizes = {"d": 4} if "llama" in name else {}
    return {"map": name, "mesh": mesh_of(name, ranks), "sizes": sizes, "to": "safetensors", "files": "ranks", "file_names": NAMES}  # fmt: skip


def files_of(name: str, source: Path, ranks: int) -> list[dict[str, Array]]:
    weights = load_file(source / "model.safetensors")
    return [state_of_rank(CONFIGS[name], weights, rank, ranks) for rank in range(ranks)]


def content(tensors: Mapping[str, Array]) -> dict[str, Any]:
    return {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in tensors.items()}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_file_is_what_the_loaders_make_of_its_rank(
    models: Path, tmp_path: Path, name: str, ranks: int
) -> None:
    target = tmp_path / "served"
    reshard.convert(models / name, target, **given(name, ranks))
    found = {path.name: content(load_file(path)) for path in target.glob("*.safetensors")}
    wanted = [content(state) for state in files_of(name, models / name, ranks)]
    assert found == {NAMES.format(rank=rank): state for rank, state in enumerate(wanted)}


def test_the_ranks_side_by_side_are_no_fused_tensor(models: Path, tmp_path: Path) -> None:
    source = models / "vllm-llama3"
    reshard.convert(source, tmp_path / "served", **given("vllm-llama3", 2))
    layer = "model.layers.0.self_attn."
    weights = load_file(source / "model.safetensors")
    fused = np.concatenate([weights[f"{layer}{one}_proj.weight"] for one in "qkv"])
    files = [load_file(tmp_path / "served" / NAMES.format(rank=rank)) for rank in range(2)]
    merged = np.concatenate([file[f"{layer}qkv_proj.weight"] for file in files])
    assert merged.shape == fused.shape
    assert (merged != fused).any()
    heads = merged.reshape(
        2, 8, 4, -1
    )  # of each rank 4 of the queries, 2 of the keys, 2 of the values
    back = [heads[:, rows].reshape(-1, fused.shape[1]) for rows in (slice(4), slice(4, 6), slice(6, 8))]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(back), fused)


def commands(source: Path, target: Path, sizes: str) -> tuple[list[str], list[str]]:
    by = ["--map", "vllm-llama3", "--size", "d=4"]
    convert = ["convert", str(source), str(target), *by, "--mesh", "kv=4,copies=2", "--to", "safetensors"]  # fmt: skip
    verify = ["verify", str(source), str(target), *by]
    return [*convert, "--files", "ranks", "--file-names", NAMES], [*verify, *sizes.split()]


def test_verify_compares_files_of_ranks_by_the_recipe(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = models / "vllm-llama3", tmp_path / "served"
    convert, verify = commands(source, target, "--size kv=4 --size copies=2")
    assert run(convert) == 0
    capsys.readouterr()
    assert run(["verify", str(source), str(target)]) == 0  # by the map that the files record
    assert "equal: 23 of 23 tensors" in capsys.readouterr().out
    assert run(verify) == 0
    assert "equal: 23 of 23 tensors" in capsys.readouterr().out
    assert run(verify[:-2]) == 1
    assert (
        "error: recipe vllm-llama3: the sizes kv, copies are those of the target's mesh; give a mesh with these axes (--mesh), such as "
        "kv=2,copies=2, or, where nothing is written, the sizes (--size)"
    ) in " ".join(capsys.readouterr().err.split())


def verified(source: Path, target: Path) -> list[str]:
    """The tensors that differ from what the recipe makes for two ranks."""
    sizes = {"d": 4, "kv": 2, "copies": 1}
    found = reshard.verify(source, target, map="vllm-llama3", sizes=sizes)
    return [tensor.name for tensor in found.tensors if tensor.is_difference]


def test_values_in_the_place_of_keys_are_found(models: Path, tmp_path: Path) -> None:
    source = models / "vllm-llama3"
    names = "[self_attn.q_proj.weight, self_attn.k_proj.weight, self_attn.v_proj.weight]"
    swapped = "[self_attn.q_proj.weight, self_attn.v_proj.weight, self_attn.k_proj.weight]"
    wrong = rules.recipe("vllm-llama3").replace(names, swapped)
    assert wrong != rules.recipe("vllm-llama3")
    reshard.convert(source, tmp_path / "wrong", **{**given("vllm-llama3", 2), "map": wrong})
    qkv = [f"model.layers.{layer}.self_attn.qkv_proj.weight" for layer in range(2)]
    assert verified(source, tmp_path / "wrong") == qkv
    reshard.convert(source, tmp_path / "right", **given("vllm-llama3", 2))
    assert verified(source, tmp_path / "right") == []


def test_the_data_of_another_rank_is_found(models: Path, tmp_path: Path) -> None:
    source, target = models / "vllm-llama3", tmp_path / "served"
    reshard.convert(source, target, **given("vllm-llama3", 2))
    first, second = (target / NAMES.format(rank=rank) for rank in range(2))
    a, b = first.read_bytes(), second.read_bytes()
    begin, other = (8 + int.from_bytes(each[:8], "little") for each in (a, b))
    first.write_bytes(a[:begin] + b[other:])
    second.write_bytes(b[:other] + a[begin:])
    split = {name for name in load_file(first) if "norm" not in name and "_scale" not in name}
    assert set(verified(source, target)) == split


REFUSED = (
    ("experts", "vllm-qwen3", {}, "refuse[0] (recipe vllm-qwen3:11): 'model.layers.0.mlp.experts.0.down_proj.weight' and 23 more: vLLM stores experts after a kernel has rearranged them, and chooses the kernel where it runs; let it load the Hugging Face files"),
    ("vllm-qwen3", "vllm-llama3", {}, "no rule of the map takes 4 of 25 tensors ('model.layers.0.self_attn.k_norm.weight'"),
    ("vllm-llama3", "vllm-llama3-tied", {}, "no rule of the map takes 1 of 21 tensors ('lm_head.weight')"),
    ("vllm-llama3", "vllm-llama3", {"sizes": {}}, "axis 0 of 'model.layers.0.self_attn.q_proj.weight' is 32, which is no multiple of (kv copies h d) with kv = 2, copies = 1, d = 128"),
    ("vllm-llama3", "vllm-llama3", {"mesh": "kv=8,copies=1"}, "axis 0 of 'model.layers.0.self_attn.k_proj.weight' is 16, which is no multiple of (kv n d) with kv = 8, d = 4"),
    ("vllm-llama3", "vllm-llama3", {"mesh": "kv=2,copies=2"}, "pad asks for 1 of 'n', of which there are 2"),
    ("vllm-llama3", "vllm-llama3", {"mesh": "kv=3,copies=1"}, "which is no multiple of (kv copies h d) with kv = 3, copies = 1, d = 4"),
    ("vllm-llama3", "vllm-llama3", {"sizes": {"d": 4, "kv": 4}}, "the size 'kv' is given as 4, but the mesh has 2 along 'kv', which is this size in recipe vllm-llama3; leave the size out (sizes), or give another mesh"),
    ("vllm-llama3", "vllm-llama3", {"mesh": None}, "recipe vllm-llama3: the sizes kv, copies are those of the target's mesh; give a mesh with these axes (mesh), such as kv=2,copies=2, or, where nothing is written, the sizes (sizes)"),
    ("vllm-llama3", "vllm-llama3", {"mesh": None, "reverse": True}, "it cannot be read backwards"),
)  # fmt: skip


@pytest.mark.parametrize(("model", "name", "changed", "message"), REFUSED)
def test_what_is_refused(
    models: Path, tmp_path: Path, model: str, name: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        reshard.convert(models / model, tmp_path / "served", **{**given(name, 2), **changed})
    assert message in str(caught.value)
    assert not (tmp_path / "served").exists()


def test_quantised_weights_are_refused(models: Path, tmp_path: Path) -> None:
    tensors = load_file(models / "vllm-llama3" / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = np.ones((1, 1), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(PlanError) as caught:
        reshard.convert(
            tmp_path / "model.safetensors", tmp_path / "served", **given("vllm-llama3", 2)
        )
    assert str(caught.value) == (
        "refuse[1] (recipe vllm-llama3:15): 'model.layers.0.mlp.up_proj.weight_scale_inv': vLLM stores quantised weights after a "
        "kernel has rearranged them, and chooses the kernel where it runs; let it load the Hugging Face files"
    )


def test_a_plan_tells_what_the_recipe_makes(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(models / "vllm-qwen3")
    asked = ["--map", "vllm-qwen3", "--mesh", "kv=2,copies=4", "--files", "ranks", "--to", "safetensors"]  # fmt: skip
    assert run(["plan", source, *asked]) == 0
    assert "map: 25 tensors → 27, every element used and written once" in capsys.readouterr().out
