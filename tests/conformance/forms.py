"""The forms in which reshard writes checkpoints. Every pair of them passes the suite of this folder.

A new form is a new line of ``FORMS``. ``PAIRS`` is what the suite runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.conformance.bundle import DTYPES as BUNDLE_DTYPES
from tests.conformance.bundle import read_bundle
from tests.conformance.independent import Read, read_orbax, read_safetensors
from tests.conformance.torch_dcp_files import DTYPES as DCP_DTYPES
from tests.conformance.torch_dcp_files import read_dcp
from tests.conformance.weights import read_weights
from tests.orbax_trees import DTYPES

SAFETENSORS_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
    "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip


class Form(Struct, frozen=True):
    """A form of a checkpoint.

    Attributes:
        title: its name in the docs.
        options: of ``reshard.convert``, which make it.
        dtypes: those that it can hold.
        read: reads the tensors of such a checkpoint without this project.
        ending: of the name of a target.
        only_tensors: whether it has no place for strings, None, PRNG keys and empty containers.
        texts: whether it has a place for strings all the same.
        keys: whether it can say that a tensor is a PRNG key; no form of tensors only does.
        only_meshes: whether a tensor is split by mesh axes only, and not by partitions.
    """

    title: str
    options: Mapping[str, Any]
    dtypes: tuple[str, ...]
    read: Callable[[Path], Read]
    ending: str = ""
    only_tensors: bool = False
    only_meshes: bool = False
    texts: bool = False
    keys: bool = False

    @property
    def format(self) -> str:
        return str(self.options["to"])

    @property
    def id(self) -> str:
        """A short name, for the ids of tests and for files."""
        return self.title.replace(",", "").replace(" ", "-")


def _orbax(title: str, **options: Any) -> Form:
    return Form(f"Orbax, {title}", {"to": "orbax"} | options, DTYPES, read_orbax, keys=True)


def _safetensors(
    title: str, *, ending: str = "", only_meshes: bool = False, **options: Any
) -> Form:
    return Form(
        f"safetensors, {title}",
        {"to": "safetensors"} | options,
        SAFETENSORS_DTYPES,
        read_safetensors,
        ending,
        only_tensors=True,
        only_meshes=only_meshes,
    )


FORMS = (
    _orbax("plain"),
    _orbax("zstd", compression="zstd", chunk_bytes=200),
    _orbax("OCDBT", ocdbt=True),
    _safetensors("one file", files="one", ending=".safetensors"),
    _safetensors("shards", files="shards", file_bytes=300),
    _safetensors("rank files", files="ranks", only_meshes=True),
    _safetensors("DCP", files="dcp"),
    Form("torch DCP", {"to": "dcp"}, DCP_DTYPES, read_dcp),
    Form(
        "TensorFlow",
        {"to": "tensorflow"},
        tuple(BUNDLE_DTYPES.values()),
        read_bundle,
        only_tensors=True,
        texts=True,
    ),
    Form("Keras", {"to": "keras"}, DTYPES, read_weights, ".weights.h5", only_tensors=True),
)

PAIRS = tuple(itertools.product(FORMS, FORMS))
"""Every source with every target."""
