"""Holds a Hugging Face config.json against the tensors of a target: names, shapes, number of layers and experts.

The tables list the tensors that the model code of transformers 5 makes from a config, for decoders that share the modules of Llama. A config of
another model type is copied unchecked, with a warning. No value is made up: a size that the config lacks is an error.

The files beside the weights of a safetensors folder, such as config.json or the folder of a tokenizer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.errors import FormatError, PlanError, ReshardError
from reshard.formats.marks import is_weights
from reshard.formats.names import OF_RECORDS
from reshard.formats.safe_json import read_json
from reshard.formats.target_files import FilesOf
from reshard.geometry.sizes import exact_bytes
from reshard.storage.commit_markers import COMMIT_MARKER, UNFINISHED_MARK
from reshard.storage.location import Location, locate

MOST_FOLDER_BYTES = 64 << 20
MOST_FOLDER_FILES = 1000
"""Of a folder that is carried. Larger ones hold weights in other formats (``original/``, ``onnx/``) or other checkpoints, and
would double the target; the largest tokenizers take 40 MB."""


_OF_THE_RUN = OF_RECORDS | {COMMIT_MARKER, UNFINISHED_MARK}
"""Files that reshard wrote about the checkpoint itself. A marker that is carried would say that its copy is complete."""


CONFIG_NAME = "config.json"
_QUANTIZED = "quantization_config"
_OF_A_MODEL = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Endings of config, generation and tokenizer files, chat templates, and model code that a config names."""


class Beside(Struct, frozen=True):
    """The files beside the weights.

    Attributes:
        folder: the text of the location that they are in; "" where there are none.
        files: their paths below it.
        left_out: the folders that are too large.
        edited: the new texts of files that are not copied as they are.
    """

    folder: str = ""
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    edited: Mapping[str, str] = field(default_factory=dict)

    @property
    def locations(self) -> tuple[Location, ...]:
        """The locations of ``files``, in that order."""
        return tuple(locate(f"{self.folder}/{path}") for path in self.files)

    def saying(self, quantization: Mapping[str, Any] | None) -> Beside:
        """The files with what config.json says of quantised weights; None for none. FormatError for a config that cannot be read."""
        files = tuple(path for path in self.files if path != "hf_quant_config.json")
        document = read_json(locate(self.folder) / CONFIG_NAME) if CONFIG_NAME in files else None
        if not isinstance(document, dict):
            return replace(self, files=files)
        parts = (document, document.get("text_config"))
        said = [part.pop(_QUANTIZED, None) for part in parts if isinstance(part, dict)]
        document |= {} if quantization is None else {_QUANTIZED: quantization}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        is_new = any(said) or quantization is not None
        return replace(self, files=files, edited={CONFIG_NAME: text} if is_new else {})


def beside(folder: Location) -> Beside:
    """Every plain file at the top of a folder that is neither weights, nor their index or record, and those in small folders
    whose names do not begin with a dot; by name.

    Raises FormatError for anything but a plain file, and for a link that leads out of the folder.
    """
    folder = folder.view()
    files: list[str] = []
    left_out: list[str] = []
    for entry in folder.entries():
        name = entry.name
        if is_weights(name) or name in _OF_THE_RUN:
            continue
        found = (folder / name).status(f"the file {name!r}")
        if found is None or found.kind != "folder":
            _refuse_odd(folder / name)
            files.append(name)
        elif not name.startswith("."):  # .git, .cache
            inner = None if entry.is_link else _files_below(folder, name)
            files += inner or ()
            left_out += [name] if inner is None else []
    return Beside(str(folder), tuple(files), tuple(left_out))


def model_files(folder: Location) -> Beside:
    """The config.json, tokenizer and other small files at the top of the folder of a model, by name.

    Raises PlanError for a place that is no folder with a config.json, FormatError as ``beside``.
    """
    if not folder.is_folder() or not (folder / CONFIG_NAME).is_file():
        raise PlanError(
            f"config is {str(folder)!r}, which is no folder with a {CONFIG_NAME}; name the folder of a Hugging Face model (config)"
        )
    found = beside(folder)
    files = [
        name
        for name in found.files
        if name.endswith(_OF_A_MODEL) and "/" not in name and not name.endswith(".index.json")
    ]
    return Beside(found.folder, tuple(files))


def left_out_text(folders: tuple[str, ...]) -> str:
    """The sentence that names the folders that are not carried."""
    names, one = ", ".join(map(repr, folders)), len(folders) == 1
    return (
        f"{'the folder' if one else 'the folders'} {names} beside the weights {'is' if one else 'are'} not carried: only folders of at "
        f"most {exact_bytes(MOST_FOLDER_BYTES)} and {MOST_FOLDER_FILES:,} files are; copy {'it' if one else 'them'} yourself where "
        "the model needs it"
    )


def _files_below(folder: Location, name: str) -> list[str] | None:
    """The paths of the files in a folder below; None if it is too large, or has a link to a folder."""
    nbytes, found = 0, []
    for below in (folder / name).files():
        path = f"{name}/{below}"
        status = (folder / path).status(f"the file {path!r}")
        if status is not None and status.kind == "folder":
            return None
        _refuse_odd(folder / path)
        nbytes += 0 if status is None else status.nbytes
        found.append(path)
        if nbytes > MOST_FOLDER_BYTES or len(found) > MOST_FOLDER_FILES:
            return None
    return sorted(found)


def _refuse_odd(file: Location) -> None:
    if not file.is_file(f"the file {file.name!r}"):
        raise FormatError(
            f"{file} is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
        )


_SHOWN = 3
MOST_TENSORS = 4_000_000
"""Of a model that a config describes: a hostile one could ask for a list without end."""

_HEAD = "lm_head.weight"

_INSTEAD = {"num_experts": "num_local_experts", "num_key_value_heads": "num_attention_heads"}
"""The size that counts where a config lacks one; transformers 5 writes the other name for experts."""

Shapes = Mapping[str, tuple[str, ...]]
"""By name below a layer or at the top: each dimension is a product of sizes of the config."""

_TOP: Shapes = {
    "model.embed_tokens.weight": ("vocab_size", "hidden_size"),
    "model.norm.weight": ("hidden_size",),
    _HEAD: ("vocab_size", "hidden_size"),
}
_ATTENTION: Shapes = {
    "input_layernorm.weight": ("hidden_size",),
    "post_attention_layernorm.weight": ("hidden_size",),
    "self_attn.q_proj.weight": ("num_attention_heads * head_dim", "hidden_size"),
    "self_attn.k_proj.weight": ("num_key_value_heads * head_dim", "hidden_size"),
    "self_attn.v_proj.weight": ("num_key_value_heads * head_dim", "hidden_size"),
    "self_attn.o_proj.weight": ("hidden_size", "num_attention_heads * head_dim"),
}
_MLP: Shapes = {
    "mlp.gate_proj.weight": ("intermediate_size", "hidden_size"),
    "mlp.up_proj.weight": ("intermediate_size", "hidden_size"),
    "mlp.down_proj.weight": ("hidden_size", "intermediate_size"),
}
_QKV_BIAS: Shapes = {
    f"{name.removesuffix('weight')}bias": shape[:1]
    for name, shape in _ATTENTION.items()
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
}
_O_BIAS: Shapes = {"self_attn.o_proj.bias": ("hidden_size",)}
_MLP_BIAS: Shapes = {f"{name.removesuffix('weight')}bias": shape[:1] for name, shape in _MLP.items()}  # fmt: skip
_QK_NORM: Shapes = {"self_attn.q_norm.weight": ("head_dim",), "self_attn.k_norm.weight": ("head_dim",)}  # fmt: skip
_FFN_NORM: Shapes = {
    "pre_feedforward_layernorm.weight": ("hidden_size",),
    "post_feedforward_layernorm.weight": ("hidden_size",),
}
_MIXTRAL: Shapes = {
    "block_sparse_moe.gate.weight": ("num_local_experts", "hidden_size"),
    "block_sparse_moe.experts.{x}.w1.weight": ("intermediate_size", "hidden_size"),
    "block_sparse_moe.experts.{x}.w2.weight": ("hidden_size", "intermediate_size"),
    "block_sparse_moe.experts.{x}.w3.weight": ("intermediate_size", "hidden_size"),
}
_QWEN_MOE: Shapes = {
    "mlp.gate.weight": ("num_experts", "hidden_size"),
    "mlp.experts.{x}.gate_proj.weight": ("moe_intermediate_size", "hidden_size"),
    "mlp.experts.{x}.up_proj.weight": ("moe_intermediate_size", "hidden_size"),
    "mlp.experts.{x}.down_proj.weight": ("hidden_size", "moe_intermediate_size"),
}


class _Family(Struct, frozen=True):
    """The tensors of each layer in the model code of one model type.

    Attributes:
        experts: in place of the dense ``mlp``, in layers that have experts.
        count: the name of the size that is the number of experts.
        is_tied: True if the output layer is the embedding where the config does not say.
    """

    layer: Shapes
    mlp: Shapes = field(default_factory=lambda: _MLP)
    experts: Shapes = field(default_factory=dict)
    count: str = ""
    is_tied: bool = False


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(_ATTENTION),
    "mistral": _Family(_ATTENTION),
    "qwen2": _Family({**_ATTENTION, **_QKV_BIAS}),
    "qwen3": _Family({**_ATTENTION, **_QK_NORM}),
    "qwen3_moe": _Family(
        {**_ATTENTION, **_QK_NORM}, experts=_QWEN_MOE, count="num_experts"
    ),
    "mixtral": _Family(_ATTENTION, {}, _MIXTRAL, "num_local_experts"),
    "gemma": _Family(_ATTENTION, is_tied=True),
    "gemma2": _Family({**_ATTENTION, **_FFN_NORM}, is_tied=True),
    "gemma3_text": _Family({**_ATTENTION, **_FFN_NORM, **_QK_NORM}, is_tied=True),
}  # fmt: skip
"""The model types whose tensors are known."""


class ModelConfig(Struct, frozen=True):
    """A config.json.

    Attributes:
        where: its text, for messages.
        values: its content.
    """

    where: str
    values: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The word by which transformers chooses the model code; "" where there is none."""
        found = self.values.get("model_type")
        return found if isinstance(found, str) else ""

    def size(self, name: str) -> int:
        """A size; PlanError where the config has none, or an invalid one."""
        value = self.values.get(name)
        if value is None and name in _INSTEAD:
            return self.size(_INSTEAD[name])
        if value is None and name == "head_dim":
            return self.size("hidden_size") // max(1, self.size("num_attention_heads"))
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
            found = "has none" if value is None else f"says {value!r}"
            raise PlanError(
                f"{self.where}: {self.model_type} needs {name}, a whole number, but the config {found}; take the config of this model"
            )
        return value

    def product(self, text: str) -> int:
        """The product of sizes that a text names."""
        return math.prod(self.size(name) for name in text.split(" * "))

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        return bool(self.values.get(name, default))


def read_config(file: Location) -> ModelConfig:
    """A config.json; PlanError for any other content."""
    try:
        document = read_json(file)
    except ReshardError as error:
        raise PlanError(f"{file} cannot be read as the config of a model: {error}") from error
    if not isinstance(document, dict):
        raise PlanError(f"{file} is no config of a model; expected a JSON object with its sizes")
    return ModelConfig(str(file), document)


def check_config(
    config: ModelConfig, files: FilesOf, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises PlanError where the target lacks a tensor that the model code asks for, has one more, or one of another shape.

    Only whole tensors of a model type that is known are checked.
    """
    family = FAMILIES.get(config.model_type)
    if family is None or files != "shards":
        return
    wanted = dict(_wanted(config, family))
    if config.flag("tie_word_embeddings", family.is_tied) and _HEAD not in shapes:
        wanted.pop(_HEAD, None)
    missing = [n for n in wanted if n not in shapes]
    if missing:
        said = _names(config, "asks for {} that the target does not have", missing)
        raise PlanError(said + _names_remedy(missing, shapes))
    other = [name for name in shapes if name not in wanted]
    if other:
        raise PlanError(_names(config, "has no place for {} of the target", other) + _REMEDY)
    for name, dimensions in wanted.items():
        _check_shape(config, name, dimensions, shapes[name])


def config_warnings(config: ModelConfig, files: FilesOf) -> Iterator[str]:
    """A sentence where a config was not held against a target of the form ``files``."""
    if files != "shards":
        yield (
            f"{config.where} was copied unchecked: it describes whole tensors under the names of transformers, and files is {files!r}"
        )
    elif config.model_type not in FAMILIES:
        yield (
            f"{config.where} is of model type {config.model_type!r}, whose tensors are not known here, and was copied unchecked; known are "
            f"{', '.join(FAMILIES)}"
        )


def _wanted(config: ModelConfig, family: _Family) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every tensor of the model, with its shape in words."""
    layers = config.size("num_hidden_layers")
    experts = config.size(family.count) if family.count else 0
    if layers * (experts + 1) * 4 > MOST_TENSORS:
        raise PlanError(
            f"{config.where} describes {layers:,} layers of {experts:,} experts, more than {MOST_TENSORS:,} tensors; take the config of this "
            "model"
        )
    yield from _TOP.items()
    for layer in range(layers):
        for name, shape in _of_layer(config, family, layer, experts):
            yield f"model.layers.{layer}.{name}", shape


def _of_layer(
    config: ModelConfig, family: _Family, layer: int, experts: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from family.layer.items()
    if config.flag("attention_bias", False):
        yield from _QKV_BIAS.items()
        yield from _O_BIAS.items()
    if experts and not _is_dense(config, layer):
        for name, shape in family.experts.items():
            numbers = range(experts) if "{x}" in name else range(1)
            yield from ((name.replace("{x}", str(number)), shape) for number in numbers)
        return
    yield from family.mlp.items()
    if config.flag("mlp_bias", False):
        yield from _MLP_BIAS.items()


def _is_dense(config: ModelConfig, layer: int) -> bool:
    """True if a layer of a model with experts has none, by Qwen's two keys."""
    dense, step = config.values.get("mlp_only_layers"), config.values.get("decoder_sparse_step", 1)
    listed = isinstance(dense, list) and layer in dense
    return listed or (isinstance(step, int) and step > 1 and (layer + 1) % step != 0)


def _check_shape(
    config: ModelConfig, name: str, dimensions: tuple[str, ...], found: tuple[int, ...]
) -> None:
    wanted = tuple(map(config.product, dimensions))
    if wanted != found:
        words = " × ".join(
            f"{text} = {size}" for text, size in zip(dimensions, wanted, strict=True)
        )
        raise PlanError(
            f"{config.where} does not fit the target: {name!r} has shape {list(found)}, but the config says {words}; take the config of "
            "this model, or make this shape by a map (map)"
        )


def _names(config: ModelConfig, what: str, names: list[str]) -> str:
    some = ", ".join(map(repr, islice(names, _SHOWN))) + (", …" if len(names) > _SHOWN else "")
    count = f"{len(names):,} tensor{'s' if names[1:] else ''} ({some})"
    return f"{config.where} does not fit the target: model type {config.model_type!r} {what.format(count)}"


_REMEDY = "; take the config of this model, or change the names (rename, or a map)"


def _names_remedy(missing: list[str], names: Collection[str]) -> str:
    """The advice for names that lack: the prefix to take off, where the target has each of them behind one."""
    first = missing[0]
    prefixes = (name.removesuffix(first) for name in names if name.endswith(first))
    for prefix in prefixes:
        if all(prefix + name in names for name in missing):
            return f"; the target has them behind {prefix!r}: take that off with --rename '^{re.escape(prefix)}='"
    return _REMEDY
