"""Files as well-known training programs save them: tensors are found wherever they are, and all else is named; nothing is imported or run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import reshard
from tests.formats.safetensors.described import by_torch
from tests.oracles.oracle import Oracle

pytestmark = [
    pytest.mark.xdist_group("torch"),
    pytest.mark.filterwarnings("ignore::reshard.CheckpointWarning"),
]

LEFT_OUT = {
    "lightning": "\"callbacks/ModelCheckpoint{'monitor': 'val', 'mode': 'min'}/dirpath\" is an object of pathlib.PurePosixPath, 'hyper_parameters' is an object of lightning_fabric.utilities.data.AttributeDict",
    "timm": "'args' is an object of argparse.Namespace, 'metric' is an object of numpy.number",
    "torchvision": "'lr_scheduler/milestones' is an object of collections.Counter, 'args' is an object of argparse.Namespace",
    "dino": "'args' is an object of argparse.Namespace, 'kept' is an object of dinov2.utils.config.Kind, 'dtype' is the object torch.float16",
    "detectron2": "'sampler' is an object of detectron2.data.samplers.TrainingSampler",
    "mmengine": "'meta/seed' is an object of numpy.number, 'message_hub/log_scalars/train/loss' is an object of mmengine.logging.history_buffer.HistoryBuffer",
    "fairseq": "'cfg' is an object of omegaconf.dictconfig.DictConfig, 'extra_state/seen' is an object of __builtin__.set",
    "deepspeed": "'optimizer/loss_scaler' is an object of deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler, 'param_shapes/0/0.weight' is an object of torch.Size, 'param_shapes/0/0.bias' is an object of torch.Size and 7 more",
    "accelerate": "",
    "yolo": "'best_fitness' is an object of numpy.number, 'ema' is an object of ultralytics.nn.tasks.DetectionModel",
    "whole_model": "it is an object of torch.nn.modules.container.Sequential",
    "places": "'w.split' is an attribute of a tensor, 'optimizer' is an object of torch.optim.sgd.SGD, 'call' is an object of functools.partial and 1 more",
    "views": "",
    "tensor": "",
}  # fmt: skip
SAID = ": only the program that wrote such values can read them; they are left out, but for tensors in them"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def saved(torch: Oracle, folder: Path) -> dict[str, dict[str, Any]]:
    """The name of each file below ``folder``, and the tensors that torch saved in it."""
    found: dict[str, dict[str, Any]] = torch.ask("save_trained", folder=str(folder))
    return found


@pytest.mark.parametrize("name", LEFT_OUT)
def test_tensors_are_found_wherever_they_are(
    torch: Oracle, saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path, name: str
) -> None:
    source = folder / saved[name]["file"]
    before = set(sys.modules)
    shapes = {key: spec.shape for key, spec in reshard.open_checkpoint(source).tensors.items()}
    found = saved[name]["tensors"]
    report = reshard.convert(source, tmp_path / "hf", to="safetensors")
    assert not {key.split(".")[0] for key in set(sys.modules) - before} & {"torch", "argparse", "ultralytics"}  # fmt: skip
    told = [text for text in report.warnings if text.endswith(SAID)]
    assert told == ([LEFT_OUT[name] + SAID] if LEFT_OUT[name] else [])
    converted = by_torch(torch, tmp_path / "hf")
    assert {key: converted[key] for key in found} == found
    assert not any(shapes[key] for key in converted.keys() - found.keys())  # the others are numbers
    assert reshard.verify(source, tmp_path / "hf").differences == 0
