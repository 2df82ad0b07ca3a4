"""Files as well-known training programs save them, whose packages are not here: classes of their names are made for the time of the save.

Imported by ``torch_process.py``, inside the environment of torch.
"""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_tensors import described


def made(name: str, *bases: type, **members: Any) -> type:
    """A class that its pickle names ``name``, module and class."""
    module, _, short = name.rpartition(".")
    return type(short, bases or (object,), {"__module__": module, "FULL": name, **members})


@contextmanager
def installed(*classes: type) -> Iterator[None]:
    """The modules of classes, as long as this lasts."""
    before = dict(sys.modules)
    for one in classes:
        parts = one.__module__.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            module = sys.modules.setdefault(name, types.ModuleType(name))
            if depth > 1:
                setattr(sys.modules[name.rpartition(".")[0]], parts[depth - 1], module)
        setattr(sys.modules[one.__module__], one.__name__, one)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]


AttributeDict = made("lightning_fabric.utilities.data.AttributeDict", dict)
HistoryBuffer = made("mmengine.logging.history_buffer.HistoryBuffer")
DictConfig = made("omegaconf.dictconfig.DictConfig")
AnyNode = made("omegaconf.nodes.AnyNode")
LossScaler = made("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler")
Sampler = made("detectron2.data.samplers.TrainingSampler")
Kind = enum.Enum("Kind", {"BEST": 1, "LAST": 2}, module="dinov2.utils.config")
Conv = made("ultralytics.nn.modules.conv.Conv", torch.nn.Module)
Detection = made("ultralytics.nn.tasks.DetectionModel", torch.nn.Module)
CLASSES = (AttributeDict, HistoryBuffer, DictConfig, AnyNode, LossScaler, Sampler, Kind, Conv, Detection)  # fmt: skip


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.arange(8.0).view(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def parts() -> tuple[Any, Any]:
    model, optimizer = trained()
    return model.state_dict(), optimizer.state_dict()


def lightning() -> Any:
    model, optimizer = parts()
    best = {
        "monitor": "val",
        "best_model_score": torch.tensor(0.5),
        "best_k_models": {},
        "dirpath": pathlib.PurePosixPath("/x"),
    }
    return {
        "epoch": 1, "global_step": 7, "pytorch-lightning_version": "2.5.0", "state_dict": model,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val', 'mode': 'min'}": best},
        "optimizer_states": [optimizer], "lr_schedulers": [{"last_epoch": 1, "_step_count": 2}],
        "hparams_name": "kwargs", "hyper_parameters": AttributeDict(lr=0.1, layers=[1, 2]),
    }  # fmt: skip


def timm() -> Any:
    model, optimizer = parts()
    args = argparse.Namespace(model="vit", lr=0.1, aa=None)
    return {"epoch": 3, "arch": "vit", "state_dict": model, "optimizer": optimizer, "version": 2, "args": args,
            "amp_scaler": {"scale": 65536.0}, "state_dict_ema": model, "metric": np.float64(0.7)}  # fmt: skip


def torchvision() -> Any:
    model, optimizer = parts()
    schedule = {"last_epoch": 2, "milestones": collections.Counter([3, 4]), "gamma": 0.1}
    return {"model": model, "optimizer": optimizer, "lr_scheduler": schedule, "epoch": 2,
            "args": argparse.Namespace(device=torch.device("cpu"), amp=False)}  # fmt: skip


def dino() -> Any:
    model, optimizer = parts()
    student = {f"module.backbone.{name}": tensor for name, tensor in model.items()}
    return {"student": student, "teacher": model, "optimizer": optimizer, "epoch": 9, "args": argparse.Namespace(arch="vit_s"),
            "dino_loss": collections.OrderedDict(center=torch.ones(1, 4)), "kept": Kind.BEST, "dtype": torch.float16}  # fmt: skip


def detectron2() -> Any:
    model, optimizer = parts()
    sampler = Sampler()
    sampler._seed, sampler._order = 1, [torch.arange(3), 5]
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": {"last_epoch": 4},
        "iteration": 4,
        "sampler": sampler,
    }


def mmengine() -> Any:
    model, optimizer = parts()
    history = HistoryBuffer()
    history._max_length, history._log_history = 10, np.arange(3.0)
    meta = {
        "epoch": 1,
        "cfg": "model = dict()",
        "dataset_meta": {"classes": ("cat", "dog"), "palette": [(0, 1, 2)]},
        "seed": np.int64(5),
    }
    hub = {
        "log_scalars": collections.OrderedDict({"train/loss": history}),
        "runtime_info": collections.OrderedDict(),
        "resumed_keys": {},
    }
    return {
        "meta": meta,
        "state_dict": model,
        "message_hub": hub,
        "optimizer": optimizer,
        "param_schedulers": [{"by_epoch": True}],
    }


def fairseq() -> Any:
    model, optimizer = parts()
    config, node = DictConfig(), AnyNode()
    node._parent, node._val = config, 0.1
    config._parent, config._content = None, {"lr": node}
    return {"args": None, "cfg": config, "model": model, "criterion": None, "optimizer_history": [{"num_updates": 5}], "task_state": {},
            "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": 2.5, "seen": {1, 2}}, "last_optimizer_state": optimizer}  # fmt: skip


def deepspeed() -> Any:
    model, _ = parts()
    scaler = LossScaler()
    scaler.cur_scale = 2.0
    shapes = [collections.OrderedDict((name, tensor.shape) for name, tensor in model.items())]
    return {"module": model, "buffer_names": [], "optimizer": {"loss_scaler": scaler}, "param_shapes": shapes, "lr_scheduler": None,
            "sparse_tensor_module_names": set(), "skipped_steps": 0, "global_steps": 3, "ds_version": "0.15.0",
            "rng": b"\x00\x01", "expert": collections.defaultdict(list, {0: [torch.ones(2)], "x": [], (1, 2): 3})}  # fmt: skip


def accelerate() -> Any:
    _, optimizer = parts()
    return optimizer


def yolo() -> Any:
    torch.manual_seed(3)
    model = Detection()
    model.model = torch.nn.Sequential(*(Conv() for _ in range(2)))
    for conv in model.model:
        conv.conv, conv.bn = torch.nn.Conv2d(2, 2, 1, bias=False), torch.nn.BatchNorm2d(2)
        conv.act = torch.nn.SiLU()
    model.shared = model.model[0].conv
    model.stride, model.names, model.yaml_file = (
        torch.tensor([8.0, 16.0]),
        {0: "cat"},
        pathlib.PurePosixPath("y.yaml"),
    )
    model.parents = [model]
    return {"epoch": -1, "best_fitness": np.float64(0.5), "model": None, "ema": model.half(), "updates": 3, "optimizer": None,
            "train_args": {"imgsz": 640}, "date": "2025-01-01"}  # fmt: skip


def whole_model() -> Any:
    """A module by itself, with a parameter that has attributes, and one of a class of its own."""
    model, _ = trained()
    model.tied = model[0].weight
    model[0].bias.note = torch.ones(1)
    return model


def views() -> Any:
    flat = torch.arange(64.0).view(8, 8)
    return {"columns": flat[:, :4], "step": flat[::2, 1::3], "row": torch.arange(3).expand(4, 3), "one": torch.ones(1).expand(2, 5, 1),
            "windows": flat.view(-1).unfold(0, 4, 2), "overlap": torch.arange(5).as_strided((2, 2), (3, 0)),
            "turned": flat[1:, 2:].t(), "diagonal": flat.diagonal(), "wide": torch.arange(3 * 70_000).view(3, 70_000)[:, 5:69_000]}  # fmt: skip


def places() -> Any:
    """Tensors in keys, in objects that keep their state in a form of their own, and below keys that are no text."""
    flat = torch.arange(10.0)
    weight = torch.nn.Parameter(flat[:2].clone())
    weight.split, weight.main = {"dim": 0}, flat[:3]
    optimizer = torch.optim.SGD([torch.nn.Parameter(flat[:4]), torch.nn.Parameter(flat[:5])])
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter]["momentum"] = parameter.detach() + 1
    objects = np.empty(1, dtype=object)
    objects[0] = flat[:6]
    return {"w": weight, "optimizer": optimizer, "kinds": {Kind.BEST: flat[:7], Kind.LAST: flat[:8]}, "bytes": {b"a": flat[1:2], b"b": flat[2:4]},
            "numbers": {1: flat[1:3], "1": flat[1:4]}, "dtypes": {torch.float16: flat[1:5]}, "call": functools.partial(max, flat[1:6], key=flat[1:7]),
            "objects": objects, "names": {flat[1:8]: "x"}}  # fmt: skip


def in_places(value: Any) -> dict[str, torch.Tensor]:
    """The tensors of ``places`` by the names that they get."""
    first, second = value["optimizer"].param_groups[0]["params"]
    states = value["optimizer"].state
    best, last = value["kinds"].values()
    a, b = value["bytes"].values()
    one, other = value["numbers"].values()
    return {"w": value["w"], "w.main": value["w"].main, "optimizer/state.tensor (key)": first, "optimizer/state.tensor #1 (key)": second,
            "optimizer/state.tensor.momentum": states[first]["momentum"], "optimizer/state.tensor #1.momentum": states[second]["momentum"],
            "kinds/dinov2.utils.config.Kind(1)": best, "kinds/dinov2.utils.config.Kind(2)": last,
            "bytes/bytes('a', 'latin1')": a, "bytes/bytes('b', 'latin1')": b, "numbers/1 #0": one, "numbers/1": other,
            "dtypes/torch.float16": value["dtypes"][torch.float16], "call/1.0": value["call"].args[0], "call/2.key": value["call"].keywords["key"],
            "objects/4.0": value["objects"][0], "names/tensor (key)": next(iter(value["names"]))}  # fmt: skip


SAVED: dict[str, tuple[str, Callable[[], Any]]] = {
    "lightning": ("last.ckpt", lightning), "timm": ("checkpoint-3.pth.tar", timm), "torchvision": ("model_2.pth", torchvision),
    "dino": ("checkpoint.pth", dino), "detectron2": ("model_0004.pth", detectron2), "mmengine": ("epoch_1.pth", mmengine),
    "fairseq": ("checkpoint_best.pt", fairseq), "deepspeed": ("mp_rank_00_model_states.pt", deepspeed),
    "accelerate": ("optimizer.bin", accelerate), "yolo": ("best.pt", yolo), "whole_model": ("model.pt", whole_model),
    "places": ("trainer.pt", places), "views": ("views.pt", views), "tensor": ("embedding.pt", lambda: torch.ones(3)),
}  # fmt: skip


def save_trained(folder: str) -> Any:
    """Saves each in a folder of its name; the files, and the tensors that each has by their names."""
    found = {}
    with installed(*CLASSES):
        for name, (file, make) in SAVED.items():
            (Path(folder) / name).mkdir()
            value = make()
            torch.save(value, f"{folder}/{name}/{file}")
            named = in_places(value) if name == "places" else dict(tensors_of(value))
            tensors = {key: described(tensor.detach()) for key, tensor in named.items()}
            found[name] = {"file": f"{name}/{file}", "tensors": tensors}
    return found


def tensors_of(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in dicts, lists and tuples; of a model those of its state dict, and what else it has of tensors."""
    if isinstance(value, torch.Tensor):
        yield "/".join(keys) or "tensor", value
    elif isinstance(value, torch.nn.Module):
        others = {key: each for key, each in vars(value).items() if isinstance(each, torch.Tensor)}
        noted = {
            f"{name}.note": p.note for name, p in value.named_parameters() if hasattr(p, "note")
        }
        for key, tensor in {**value.state_dict(), **others, **noted}.items():
            yield "/".join((*keys, key)), tensor
    elif isinstance(value, Sampler):
        yield "/".join((*keys, "_order.0")), value._order[0]
    elif isinstance(value, dict | list | tuple):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_of(child, (*keys, str(key)))
