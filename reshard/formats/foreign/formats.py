"""Formats that are recognised and not read, each with the way from there to one that is.

A way names calls that exist: transformers 5.23, torch 2.13, TensorFlow 2.21, Flax 0.12, T5X and Levanter as of 2026.
"""

from __future__ import annotations

from msgspec import Struct

from reshard.errors import FormatError

START_BYTES = 64
"""The first bytes of a file that ``refuse_stand_in`` looks at."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html", b"<?xml")


def refuse_stand_in(start: bytes, file: str) -> None:
    """Raises FormatError where a file that begins with ``start`` is none of a checkpoint, but stands in for one.

    ``file`` names it in the message.
    """
    start = start[:START_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_POINTER):
        raise FormatError(
            f"{file} is a Git LFS pointer, a small text in place of the file: it was cloned without git-lfs; run 'git lfs install' "
            "and 'git lfs pull' in the clone, or download the file itself"
        )
    if start.startswith(_PAGE):
        raise FormatError(
            f"{file} is a web page (HTML or XML) in place of the file, such as a login page or an error of the server; download "
            "the file again, with access to it"
        )


class Foreign(Struct, frozen=True):
    """A format that is not read.

    Attributes:
        name: what it is, as in "it is …".
        way: what turns it into something that is read.
    """

    name: str
    way: str


SAVED_MODEL = Foreign(
    "a SavedModel of TensorFlow",
    "its variables are a checkpoint, which the prefix DIR/variables/variables names",
)
MEGATRON = Foreign(
    "a checkpoint of Megatron in its format torch",
    "load it with Megatron and save it with --ckpt-format torch_dist, which is read",
)
DEEPSPEED = Foreign(
    "a checkpoint of DeepSpeed",
    "'python zero_to_fp32.py . OUTPUT --safe_serialization', in the folder, writes its weights as safetensors",
)
TORCH_CHECKPOINTING = Foreign(
    "a checkpoint of torch_checkpointing (metadata.pkl)",
    "restore it with that library, and write its tensors with safetensors.torch.save_file",
)
PICKLE = Foreign(
    "a pickle",
    "loading one can run any code: where you trust it, load it with torch.load(weights_only=True) and write it with "
    "safetensors.torch.save_file",
)
TORCH_ELSEWHERE = Foreign(
    "an archive of torch.save by its content, but not by its name",
    "give it a name that ends in .pt, which is read",
)
KERAS = Foreign(
    "an archive of Keras (.keras)",
    "'unzip FILE model.weights.h5' takes its weights out, which are read",
)
KERAS_SHARDS = Foreign(
    "the list of weights that Keras saved in several files (.weights.json)",
    "load them into the model with load_weights, and save one file with save_weights('NAME.weights.h5')",
)
GGUF = Foreign(
    "a GGUF file, whose tensors are quantised mostly",
    "take the model that it was made of; or let from_pretrained(DIR, gguf_file=FILE) of transformers dequantise it, and "
    "save_pretrained write it as safetensors",
)
NPZ = Foreign(
    "an archive of numpy (.npz)",
    "safetensors.numpy.save_file(dict(numpy.load(FILE)), 'NAME.safetensors') writes its arrays",
)
NPY = Foreign(
    "an array of numpy (.npy)",
    "safetensors.numpy.save_file({'NAME': numpy.load(FILE)}, 'NAME.safetensors') writes it",
)
MSGPACK = Foreign(
    "a msgpack file, such as Flax writes",
    "flax.serialization.msgpack_restore(DATA) gives its tree of arrays, which reshard.save saves",
)
T5X = Foreign(
    "a checkpoint of T5X",
    "t5x.checkpoints.load_t5x_checkpoint(DIR) gives its tree of arrays, which reshard.save saves",
)
LEVANTER = Foreign(
    "a tree of zarr arrays without Orbax's _METADATA, as Levanter writes it",
    "'python -m levanter.main.export_lm_to_hf' writes the model as Hugging Face safetensors; or read the arrays with TensorStore and save "
    "them with reshard.save",
)
ZARR = Foreign(
    "a tree of zarr arrays without Orbax's _METADATA",
    "restore the file from a copy if it is a checkpoint of Orbax; else read the arrays with TensorStore and save them with reshard.save",
)
OCDBT = Foreign(
    "a database of TensorStore (OCDBT) without Orbax's _METADATA",
    "restore the file from a copy if it is a checkpoint of Orbax; else read the arrays with TensorStore and save them with reshard.save",
)
DIFFUSERS = Foreign(
    "a pipeline of diffusers",
    "its models are in folders, such as transformer, unet, vae or text_encoder: name one of them",
)
