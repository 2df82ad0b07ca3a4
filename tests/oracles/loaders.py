"""Models and tensors as those who serve models load them: transformers, diffusers, safetensors, torch, runai-model-streamer, boto3.

Imported by ``loading_process.py``. A place is a folder, or a name of a repository; addresses are in the environment.
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import fsspec
import torch
import torch.distributed.checkpoint as dcp
from hub_clients import snapshot
from huggingface_hub import HfFileSystem
from safetensors.torch import load, load_file
from torch_tensors import described

# The order of a sum must not depend on how many cores are free.
torch.set_num_threads(1)

TOKENS = torch.arange(32).reshape(2, 16)
UNET = {
    "sample_size": 8, "layers_per_block": 1, "block_out_channels": (16,), "down_block_types": ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",), "norm_num_groups": 8, "attention_head_dim": 8,
}  # fmt: skip
"""The smallest model of diffusers that has every kind of block."""


def logits(place: str) -> Any:
    """The logits of a model of transformers, and the names that were missing from its files or of no use."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True)
    with torch.no_grad():
        values = described(model(TOKENS).logits)
    return [
        values,
        sorted(map(str, found["missing_keys"])),
        sorted(map(str, found["unexpected_keys"])),
    ]


def save_unet(folder: str) -> None:
    """Saves a small random model of diffusers."""
    from diffusers import UNet2DModel

    torch.manual_seed(3)
    UNet2DModel(**UNET).save_pretrained(folder)


def denoised(place: str) -> Any:
    """The output of a model of diffusers for noise."""
    from diffusers import UNet2DModel

    model = UNet2DModel.from_pretrained(place)
    noise = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)
    with torch.no_grad():
        return described(model(noise, timestep=5).sample)


def tensors(folder: str) -> dict[str, Any]:
    """Each tensor of the safetensors files of a folder."""
    return _described(*(load_file(path) for path in sorted(Path(folder).glob("*.safetensors"))))


def tensors_of_repository(repository: str) -> dict[str, Any]:
    """The same of a repository, by safetensors over fsspec."""
    files = [f"hf://{path}" for path in HfFileSystem().glob(f"{repository}/*.safetensors")]
    found = []
    for url in files:
        with fsspec.open(url, "rb") as file:
            found.append(load(file.read()))
    return _described(*found)


def tensors_of_bucket(url: str, folder: str) -> dict[str, Any]:
    """The same of a bucket, by runai-model-streamer, after its other files were pulled to a folder, as vLLM and SGLang do."""
    from runai_model_streamer import SafetensorsStreamer, list_safetensors, pull_files

    pull_files(url, folder, ignore_pattern=["*.safetensors"])
    found: dict[str, torch.Tensor] = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list_safetensors(url))
        for name, tensor in streamer.get_tensors():
            found[name] = tensor.clone()  # its buffer is used again
    return _described(found)


def tensors_by_dcp(folder: str) -> dict[str, Any]:
    """The same of the files of torch's distributed checkpoint."""
    reader = dcp.HuggingFaceStorageReader(folder)
    sizes = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in sizes.items()
    }
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder), no_dist=True)
    return _described(state)


def _described(*found: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: described(tensor) for each in found for name, tensor in each.items()}


def boto3_files(bucket: str, prefix: str, page: int) -> dict[str, str]:
    """The SHA-256 of each object below a prefix, whose checksum boto3 compares where it is told one."""
    return _files_of(_s3(), bucket, prefix, page)


def _files_of(client: Any, bucket: str, prefix: str, page: int) -> dict[str, str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": page})  # fmt: skip
    listed = {one["Key"]: one for answer in pages for one in answer["Contents"]}
    found = {}
    for key, about in listed.items():
        got = client.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        data = got["Body"].read()
        told = (about["Size"], about["ETag"])
        if told != (len(data), got["ETag"]):
            raise ValueError(
                f"{key} is listed with {told}, but has {len(data)} bytes and {got['ETag']}"
            )
        found[key.removeprefix(prefix)] = hashlib.sha256(data).hexdigest()
    return found


def boto3_checksums(bucket: str, keys: list[str]) -> list[str | None]:
    """The CRC-64/NVME that a HEAD of each object tells."""
    found = [_s3().head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED") for key in keys]
    return [one.get("ChecksumCRC64NVME") for one in found]


def crowd(
    repository: str, bucket: str, prefix: str, folder: str, clients: int
) -> list[dict[str, str]]:
    """The files that many clients find that download everything at once: each half of them by another library."""

    def by_hub(number: int) -> dict[str, str]:
        return snapshot(repository, f"{folder}/{number}")

    def by_boto3(number: int) -> dict[str, str]:
        return _files_of(made[number], bucket, prefix, 1000)

    made = {number: boto3.client("s3") for number in range(1, clients, 2)}
    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit((by_hub, by_boto3)[n % 2], n) for n in range(clients)]
        return [one.result() for one in asked]


@functools.cache
def _s3() -> Any:
    return boto3.client("s3")


FUNCTIONS = (
    logits, save_unet, denoised, tensors, tensors_of_repository, tensors_of_bucket, tensors_by_dcp, boto3_files, boto3_checksums, crowd,
)  # fmt: skip
