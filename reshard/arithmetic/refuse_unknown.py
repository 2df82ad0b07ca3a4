"""Refuses quantised weights that names and shapes alone would give a wrong meaning: halves of pairs, and methods that are not known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reshard.arithmetic.coded import KEEP
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.formats.quantized import ONLY_CODES, Config, config_groups

_CODES = re.compile(r"(?:\b|_)(?:weight_packed|qweight|qvalue|qdata|proj_blocks)$")
_SCALES = re.compile(
    r"weight_(?:scale|scales|scale_inv|scale_2|global_scale|zero_point)$|_scale_inv$|\b(?:scale_weight|SCB|qzeros|absmax|quant_map)$|_proj_scales$|"
    r"\b(?:array|frozen)[./]scale(?:[./]\d)?$"
)
_MORE = re.compile(r"\bpre_quant_scale$|\bfrozen[./]bias(?:[./]\d)?$")
"""The names of tensors that weights need besides codes and scales: of ModelOpt's AWQ, and of AQT."""

_SHOWN = 3


def refuse_halves(reader: Reader, halves: Collection[str]) -> None:
    """Raises PlanError for codes without scales and for scales without codes.

    Args:
        halves: the names of all codes that have scales, and of their companions.
    """
    others = [tensor.spec for name, tensor in reader.tensors.items() if name not in halves]
    bare = [s for s in others if s.dtype in ONLY_CODES or _CODES.search(s.name)]
    lone = [s for s in others if _SCALES.search(s.name)]
    for found, what in ((bare, "codes with no scale that fits"), (lone, "scales with no codes that fit")):  # fmt: skip
        if found:
            some = "; ".join(f"{s.name!r}, {s.dtype} {list(s.shape)}" for s in found[:_SHOWN])
            some += "; …" * (len(found) > _SHOWN)
            raise PlanError(
                f"{reader.uri} has {len(found):,} tensor{'s' * (len(found) > 1)} of {what} ({some}); look for files that are missing, "
                f"or {KEEP}"
            )
    more = next((s.name for s in others if _MORE.search(s.name)), None)
    if more is not None:
        raise PlanError(
            f"{reader.uri} has {more!r}, and codes and scales without it are not the weights; {KEEP}"
        )


_METHODS = frozenset({
    "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4", "mxfp8", "modelopt", "modelopt_fp4", "awq", "gptq", "bitsandbytes", "torchao", "quanto",
})  # fmt: skip
_FORMATS = frozenset({
    "dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp8-quantized", "mixed-precision",
})  # fmt: skip


def refuse_config(reader: Reader, config: Config, remedy: str = KEEP) -> None:
    """Raises PlanError for a config that names a method or a format that is not known, or a step besides codes and scales."""
    for what, found, known in _named(config):
        if isinstance(found, str) and found not in known:
            raise PlanError(
                f"the config of {reader.uri} has the {what} {found[:100]!r}, which is not known; expected one of {', '.join(sorted(known))}; {remedy}"
            )
    for step in ("transform_config", "sparsity_config"):
        inner = config.get(step)
        if isinstance(inner, Mapping) and inner and inner.get("format") != "dense":
            raise PlanError(
                f"the config of {reader.uri} has a {step}, so that codes and scales are not all that makes a weight; {remedy}"
            )


def _named(config: Config) -> Iterator[tuple[str, Any, frozenset[str]]]:
    yield "quant_method", config.get("quant_method"), _METHODS
    if config.get("quant_method") != "compressed-tensors":
        return
    yield "format", config.get("format"), _FORMATS
    for name, group in config_groups(config).items():
        yield f"group {name!r} of the format", group.get("format"), _FORMATS
