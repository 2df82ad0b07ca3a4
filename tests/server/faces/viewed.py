"""A server with views of training runs, the same files converted, and what clients set to reach it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from tests.maps.forward import VOCAB, llama
from tests.maps.maxtext_pairs import LAYERS
from tests.oracles.oracle import ENVIRONMENTS
from tests.orbax_trees import mesh, nested, save_pytree
from tests.server.live import Live
from tests.server.tokens import TOKENS, s3_secret

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float32", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
"""Of the Llama of ``tests.maps.forward``, for transformers."""

ROWS = {
    "mesh": {"axes": ["rows"], "shape": [8]},
    "rules": [{"match": "wi_|embedding", "axes": ["rows"]}, {"match": ".", "axes": []}],
}
"""A layout of eight devices, as many as there are in a process of the tests."""

LLAMA = {"map": "maxtext-llama3.1", "config": "model"}
VIEWS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"source": "run", **LLAMA, "file_bytes": 20_000},
    "dcp": {"source": "run", **LLAMA, "files": "dcp", "mesh": "data=2,model=2"},
    "unet": {"source": "unet", "config": "unet-files", "file_names": "diffusion_pytorch_model.safetensors"},
    "orbax": {"source": "run", "to": "orbax", "layout": ROWS},
}  # fmt: skip
"""The views of the tests: paths are below the root, and ``run`` is the folder of a training run."""


def save_llama(path: Path, step: int = 0) -> None:
    """A checkpoint of a (4, 2) mesh, by stock Orbax."""
    on = mesh((4, 2), ("data", "model"))

    def put(array: Any) -> jax.Array:
        axes = list({"data": 4, "model": 2}.items())
        spec = [axes.pop(0)[0] if axes and n % axes[0][1] == 0 else None for n in array.shape]
        return jax.device_put(array + step, NamedSharding(on, PartitionSpec(*spec)))

    save_pytree(path, nested({name: put(array) for name, array in llama().items()}))


def save_config(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def convert(data: Path, name: str, target: Path, step: int = 10) -> Path:
    """The files of a view as a conversion writes them; those that no view has are left out."""
    options = {"to": "safetensors", **VIEWS[name]}
    source = data / options.pop("source")
    for key in {"config"} & options.keys():
        options[key] = data / options[key]
    source = source / str(step) if source.name == "run" else source
    reshard.convert(source, target, **options)
    if source.parent.name == "run":  # Orbax recorded no digests, which the record holds
        (target / "slices.json").unlink()
    return target


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file() and ".cache" not in path.relative_to(folder).parts
    }  # fmt: skip


def variables(url: str, home: Path, token: str = "ann") -> dict[str, str]:
    """The environment that every client needs: of the hub, of S3, and of rclone."""
    return {
        "HF_ENDPOINT": f"{url}/hf", "HF_TOKEN": TOKENS[token][0], "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1",
        "AWS_ENDPOINT_URL": f"{url}/s3", "AWS_ACCESS_KEY_ID": token, "AWS_SECRET_ACCESS_KEY": s3_secret(token),
        "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_ALLOW_HTTP": "true",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        "RCLONE_CONFIG": os.devnull, "RCLONE_CONFIG_SERVER_TYPE": "s3", "RCLONE_CONFIG_SERVER_PROVIDER": "Other",
        "RCLONE_CONFIG_SERVER_ENV_AUTH": "true", "RCLONE_CONFIG_SERVER_ENDPOINT": f"{url}/s3",
    }  # fmt: skip


@dataclass(frozen=True)
class Programs:
    """The command lines of the clients, in the environment of their users."""

    variables: Mapping[str, str]

    def run(
        self, environment: str, *words: object, **more: str
    ) -> subprocess.CompletedProcess[str]:
        program, *rest = map(str, words)
        return subprocess.run(
            [ENVIRONMENTS / environment / "bin" / program, *rest], capture_output=True, text=True, timeout=300, check=False,
            env={"PATH": os.environ["PATH"], **self.variables, **more},
        )  # fmt: skip

    def said(self, environment: str, *words: object, **more: str) -> str:
        """The output of a program that ends well."""
        done = self.run(environment, *words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout


def put_views(server: Live, *names: str) -> None:
    """Makes the views whose rules are above."""
    for name in names:
        rules = {**VIEWS[name]}
        for key in {"source", "config"} & rules.keys():
            rules[key] = f"data/{rules[key]}"
        step = {"step": "latest"} if rules["source"] == "data/run" else {}
        put_view(server, name, **rules, **step)


def put_view(server: Live, name: str, token: str = "ann", **rules: Any) -> None:
    with server.client(token) as client:
        made = client.put(f"/v1/views/{name}", json={"view": rules})
        assert made.status_code == 201, made.text
