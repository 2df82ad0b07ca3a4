"""Makes ``saved.txz`` and ``logits.json``: what Megatron Core saves and computes; run by hand, once for each version.

::

    pip install torch==2.13.0 numpy packaging einops 'setuptools<81'
    pip install --no-deps megatron-core==0.16.1   # then 0.13.1, then 0.8.0
    PYTHONPATH=. python tests/megatron/save.py BUILD llama qwen3 mixtral llama-layers mixtral-layers fully_reshardable dp_reshardable  # 0.16.1
    PYTHONPATH=. python tests/megatron/save.py BUILD llama flattened  # 0.13.1
    PYTHONPATH=. python tests/megatron/save.py BUILD flattened        # 0.8.0
    tar -C BUILD -c 0.8.0 0.13.1 0.16.1 | xz -9 > tests/megatron/saved.txz; mv BUILD/logits.json tests/megatron/

Megatron Core computes on CPUs once some calls to CUDA are replaced, which ``_without_gpus`` does.
"""

from __future__ import annotations

import io
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.megatron.saved import CHOSEN, EXPERTS, PADDED, SIZES, TOKENS, VOCAB, weight

VERSION = metadata.version("megatron-core")
TENSOR_RANKS, PROCESSES = 2, 4


def _without_gpus() -> None:
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    np.product = np.prod  # older versions of Megatron Core expect an older numpy
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    random.CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()
    moe_utils.te_general_gemm = None


def _with_torch_of_today() -> None:
    """Lets version 0.8.0 write items, for which torch has had other arguments since."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch.distributed.checkpoint import filesystem as today

    def write_item(stream: Any, data: Any, item: Any, key: str) -> Any:
        form = today.SerializationFormat.TORCH_SAVE
        return today._write_item(today._StorageWriterTransforms(), stream, data, item, key, form)

    filesystem_async._write_item = write_item


def model(kind: str) -> Any:
    """A model of Megatron Core, of which this process has a part."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = EXPERTS if kind == "mixtral" else None
    more: dict[str, Any] = {}
    if experts:
        more = {"num_moe_experts": experts, "moe_router_topk": CHOSEN, "moe_token_dispatcher_type": "allgather"}  # fmt: skip
    config = TransformerConfig(
        **SIZES,
        tensor_model_parallel_size=TENSOR_RANKS,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        qk_layernorm=kind == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        add_bias_linear=False,
        **more,
    )
    spec = get_gpt_layer_local_spec(experts, qk_layernorm=kind == "qwen3", normalization="RMSNorm")
    if experts:  # as with Transformer Engine, where training runs: it fuses no norm into experts
        del spec.submodules.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    made = GPTModel(
        config,
        spec,
        vocab_size=PADDED,
        max_sequence_length=64,
        parallel_output=False,
        position_embedding_type="rope",
        rotary_base=10000,
        share_embeddings_and_output_weights=False,
    )
    return made.eval()


def logits(made: Any) -> Any:
    tokens = torch.from_numpy(TOKENS)
    length = tokens.shape[1]
    later = torch.ones(1, 1, length, length).tril() < 0.5
    with torch.no_grad():
        found = made(tokens, torch.arange(length).expand_as(tokens), later)
    return found[..., :VOCAB].numpy().astype(np.float64).round(5).tolist()


def sharded(made: Any, layers: bool) -> dict[str, Any]:
    """The model's state, filled with the weights of ``saved.weight``."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    given = {"non_homogeneous_layers": True} if layers else {}
    state = made.sharded_state_dict(metadata=given)
    apply_factories(state)
    for one in tensors_in(state, ShardedTensor):
        with torch.no_grad():
            one.data.copy_(part_of(one))
    return dict(state)


def tensors_in(value: Any, kind: type) -> list[Any]:
    if isinstance(value, dict | list):
        below = value.values() if isinstance(value, dict) else value
        return [one for child in below for one in tensors_in(child, kind)]
    return [value] if isinstance(value, kind) else []


def part_of(one: Any) -> torch.Tensor:
    full = weight(one.key, tuple(one.global_shape))
    box = tuple(
        slice(start, start + size)
        for start, size in zip(one.global_offset, (1,) * one.prepend_axis_num + tuple(one.local_shape), strict=True)
    )  # fmt: skip
    return torch.from_numpy(full[box].copy()).reshape(one.local_shape)


def of_model(kind: str, layers: bool) -> tuple[dict[str, Any], Any]:
    made = model(kind)
    state = sharded(made, layers)
    return {"model": state, **others()}, logits(made)


def others() -> dict[str, Any]:
    """What a run saves beside its model."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    tensor_rank, replica = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_data_parallel_rank()  # fmt: skip
    buffer = io.BytesIO(b"fp8")
    random = [{"np_rng_state": np.random.RandomState(1).get_state()}]
    common = {
        "args": Namespace(padded_vocab_size=PADDED),
        "checkpoint_version": 3.0,
        "iteration": 5,
    }
    if VERSION == "0.8.0":  # its objects of replicas do not fit the torch of today
        return common
    return {
        **common,
        "fp8": ShardedObject("decoder.fp8._extra_state", buffer, (TENSOR_RANKS,), (tensor_rank,), replica),
        "rng_state": ShardedObject("rng_state", random, (1, TENSOR_RANKS), (0, tensor_rank), replica),
    }  # fmt: skip


def fully_reshardable() -> tuple[dict[str, Any], Any]:
    """A model, and tensors of its optimizer with other keys and the same shapes."""
    from dataclasses import replace

    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    state = sharded(model("llama"), layers=False)
    optimizer = {}
    for name in ("fp32_param", "exp_avg"):
        for number, one in enumerate(tensors_in(state, ShardedTensor)):
            key = f"optimizer.state.{name}.{one.key}"
            copy = replace(one, key=key, data=torch.empty_like(one.data))
            copy.data.copy_(part_of(copy))
            optimizer[f"{name}{number}"] = copy
    return {"model": state, "optimizer": optimizer, **others()}, None


def dp_reshardable() -> tuple[dict[str, Any], Any]:
    """Buffers of an optimizer, of which each process of a replica has a range."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    count, rank = TENSOR_RANKS, parallel_state.get_data_parallel_rank()
    prefix = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_0"
    found = {}
    for name in ("param", "exp_avg", "exp_avg_sq"):
        key = f"{prefix}.{name}"
        data = torch.from_numpy(weight(key, (40,))).chunk(count)[rank].clone()
        replica = parallel_state.get_tensor_model_parallel_rank()
        found[name] = ShardedTensor.from_rank_offsets(
            key, data, (0, rank, count), replica_id=replica
        )
    return {"model": sharded(model("llama"), layers=False), "optimizer": found, **others()}, None


def flattened() -> tuple[dict[str, Any], Any]:
    """A tensor of two dimensions and one, as the distributed optimizer of old versions flattens them."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    rank, replica = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_data_parallel_rank()  # fmt: skip
    rows = weight("rows", (8, 6))[4 * rank : 4 * rank + 4]
    first = slice(0, 15) if replica == 0 else slice(15, 24)
    flat = torch.from_numpy(rows.reshape(-1)[first].copy())
    return {
        "rows": ShardedTensor.from_rank_offsets("rows", torch.from_numpy(rows.copy()), (0, rank, 2), replica_id=replica),
        "flat": ShardedTensor.from_rank_offsets_flat(
            "optimizer.state.exp_avg.rows", flat, rows.shape, (0, rank, 2), flattened_range=first, replica_id=0,
        ),
        **others(),
    }, None  # fmt: skip


STATES: dict[str, Callable[[], tuple[dict[str, Any], Any]]] = {
    **{kind: lambda kind=kind: of_model(kind, layers=False) for kind in ("llama", "qwen3", "mixtral")},
    **{f"{kind}-layers": lambda kind=kind: of_model(kind, layers=True) for kind in ("llama", "qwen3", "mixtral")},
    "fully_reshardable": fully_reshardable,
    "dp_reshardable": dp_reshardable,
    "flattened": flattened,
}  # fmt: skip


def run(rank: int, folder: str, names: list[str]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    _without_gpus()
    if VERSION == "0.8.0":
        _with_torch_of_today()
    from megatron.core import dist_checkpointing, parallel_state

    parallel_state.initialize_model_parallel(TENSOR_RANKS)
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    for name in names:
        state, found = STATES[name]()
        to = Path(VERSION, name)  # relative, since .metadata keeps it
        to.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(state, str(to), ("torch_dist", 1))
        if found is not None and rank == 0:
            file = Path("logits.json")
            known = json.loads(file.read_text()) if file.exists() else {}
            file.write_text(json.dumps(known | {f"{VERSION}/{name}": found}))
    dist.barrier()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (sys.argv[1], sys.argv[2:]), nprocs=PROCESSES)
