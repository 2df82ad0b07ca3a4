"""What projects have for each pair of models: load it all, transform, save. ``script serve|back SOURCE TARGET``.

It follows MaxText's programs for Llama 3.1 and does as little as they can: no mesh, one copy of each weight, files of 1 GB.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orbax.checkpoint as ocp
from safetensors.numpy import load_file, save_file

from benchmarks.handover.llama import HEAD, save

Array = npt.NDArray[Any]
FILE_BYTES = 1_000_000_000
TURNED = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
NORMS = {"input": "pre_self", "post_attention": "post_self"}


def halves(kernel: Array) -> Array:
    """RoPE pairs of [embed, heads, head] as halves of [heads × head, embed]."""
    embed, heads, head = kernel.shape
    return kernel.reshape(embed, heads, head // 2, 2).transpose(1, 3, 2, 0).reshape(-1, embed)


def pairs(weight: Array) -> Array:
    """The reverse of ``halves``."""
    turned = weight.reshape(-1, 2, HEAD // 2, weight.shape[1]).transpose(3, 0, 2, 1)
    return turned.reshape(weight.shape[1], -1, HEAD)


def serve(source: Path, target: Path) -> None:
    """Orbax → safetensors."""
    tree = ocp.PyTreeCheckpointer().restore(source.absolute())["params"]["params"]
    layers, decoder = tree["decoder"]["layers"], tree["decoder"]
    made = {
        "model.embed_tokens.weight": tree["token_embedder"]["embedding"],
        "lm_head.weight": decoder["logits_dense"]["kernel"].T,
        "model.norm.weight": decoder["decoder_norm"]["scale"],
    }
    attention, mlp = layers["self_attention"], layers["mlp"]
    for n in range(layers["mlp"]["wo"]["kernel"].shape[1]):
        name = f"model.layers.{n}."
        made[f"{name}self_attn.q_proj.weight"] = halves(
            attention["query"]["kernel"][:, n]
        ) * np.float32(HEAD**0.5)
        made[f"{name}self_attn.k_proj.weight"] = halves(attention["key"]["kernel"][:, n])
        value, out = attention["value"]["kernel"][:, n], attention["out"]["kernel"][:, n]
        made[f"{name}self_attn.v_proj.weight"] = value.reshape(len(value), -1).T
        made[f"{name}self_attn.o_proj.weight"] = out.reshape(-1, out.shape[-1]).T
        for theirs, ours in TURNED.items():
            made[f"{name}mlp.{theirs}_proj.weight"] = mlp[ours]["kernel"][:, n].T
        for theirs, ours in NORMS.items():
            scale = layers[f"{ours}_attention_layer_norm"]["scale"][:, n]
            made[f"{name}{theirs}_layernorm.weight"] = scale
    _save_files(made, target)


def _save_files(made: dict[str, Array], target: Path) -> None:
    target.mkdir()
    files: list[dict[str, Array]] = [{}]
    for name, array in made.items():
        if sum(a.nbytes for a in files[-1].values()) + array.nbytes > FILE_BYTES:
            files.append({})
        files[-1][name] = np.ascontiguousarray(array)
    index: dict[str, str] = {}
    for number, file in enumerate(files, 1):
        path = f"model-{number:05}-of-{len(files):05}.safetensors"
        save_file(file, target / path)
        index |= dict.fromkeys(file, path)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (target / "model.safetensors.index.json").write_text(text)


def back(source: Path, target: Path) -> None:
    """Safetensors → Orbax."""
    w: dict[str, Array] = {}
    for path in sorted(source.glob("*.safetensors")):
        w |= load_file(path)
    count = 1 + max(int(name.split(".")[2]) for name in w if name.startswith("model.layers."))

    def stacked(kind: str, turn: Any) -> Array:
        return np.stack([turn(w[f"model.layers.{n}.{kind}.weight"]) for n in range(count)], axis=1)

    def heads(weight: Array) -> Array:
        return weight.T.reshape(weight.shape[1], -1, HEAD)

    scale = np.float32(HEAD**0.5)
    attention = {
        "query": {"kernel": stacked("self_attn.q_proj", lambda x: pairs(x) / scale)},
        "key": {"kernel": stacked("self_attn.k_proj", pairs)},
        "value": {"kernel": stacked("self_attn.v_proj", heads)},
        "out": {"kernel": stacked("self_attn.o_proj", lambda x: x.T.reshape(-1, HEAD, x.shape[0]))},
    }
    mlp = {
        ours: {"kernel": stacked(f"mlp.{theirs}_proj", np.transpose)}
        for theirs, ours in TURNED.items()
    }
    norms = {
        f"{ours}_attention_layer_norm": {"scale": stacked(f"{theirs}_layernorm", np.asarray)}
        for theirs, ours in NORMS.items()
    }
    decoder = {
        "layers": {"self_attention": attention, "mlp": mlp, **norms},
        "logits_dense": {"kernel": np.ascontiguousarray(w["lm_head.weight"].T)},
        "decoder_norm": {"scale": w["model.norm.weight"]},
    }
    embedder = {"embedding": w["model.embed_tokens.weight"]}
    save({"params": {"params": {"token_embedder": embedder, "decoder": decoder}}}, target)


if __name__ == "__main__":
    {"serve": serve, "back": back}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
