"""The index of a safetensors model, by its name; ``formats/model_index.py`` reads it.

::

    model.safetensors.index.json
    model.safetensors.index.fp16.json    that of a variant, as transformers and diffusers name it
"""

from __future__ import annotations

import re

ENDING = ".safetensors"
INDEX_NAME = f"model{ENDING}.index.json"

_INDEX = re.compile(r".*\.safetensors\.index(\.[^.]+)?\.json", re.DOTALL)


def is_index(name: str) -> bool:
    """Whether a file of that name is an index."""
    return _INDEX.fullmatch(name) is not None


def is_weights(name: str) -> bool:
    """Whether a file of that name holds tensors, or is an index of such files."""
    return name.endswith(ENDING) or is_index(name)
