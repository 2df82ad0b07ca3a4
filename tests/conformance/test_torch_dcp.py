"""torch's distributed checkpoint in loose pieces, with any order of axes, to every form; what this project writes has neither.

Half of them are Megatron's ``torch_dist``, which is not written.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import reshard
from tests.campaigns import examples
from tests.conformance.conversions import MAX_MEMORY, converted
from tests.conformance.forms import FORMS, Form
from tests.conformance.same import assert_same_arrays
from tests.conformance.trees import arrays, boxes, layouts
from tests.dcp_files import STORAGES, Part, Tensor, turned, write_dcp

DTYPES = (*STORAGES, "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
KEYS = ("w", "layers.0.w", "a b", "ünï", "opt.0.lr")

few = settings(max_examples=examples(5), phases=[Phase.explicit, Phase.reuse, Phase.generate])


@st.composite
def parts(draw: st.DrawFn, array: np.ndarray, depth: int = 3) -> list[Part]:
    """Loose pieces of an array, in any order, each with an order of axes of its own."""
    long = [dim for dim, size in enumerate(array.shape) if size > 1]
    if not long or not depth or draw(st.integers(0, 3)) == 0:
        order = draw(st.permutations(range(array.ndim)))
        return [Part((0,) * array.ndim, turned(array, order))]
    dim = draw(st.sampled_from(long))
    at = draw(st.integers(1, array.shape[dim] - 1))
    low, high = np.split(array, [at], dim)
    above = [
        part._replace(offsets=tuple(o + at * (d == dim) for d, o in enumerate(part.offsets)))
        for part in draw(parts(high, depth - 1))
    ]
    return [*above, *draw(parts(low, depth - 1))]


@st.composite
def tensors(draw: st.DrawFn, array: np.ndarray) -> Tensor:
    return Tensor(array.dtype.name, array.shape, draw(parts(array)))


@pytest.mark.parametrize("target", FORMS, ids=lambda form: form.id)
@few
@given(st.data())
def test_to_every_form(target: Form, data: st.DataObject) -> None:
    dtypes = [dtype for dtype in DTYPES if dtype in target.dtypes]
    held: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(KEYS), arrays(dtypes), min_size=1))  # fmt: skip
    saved = {name: data.draw(tensors(array)) for name, array in held.items()}
    with tempfile.TemporaryDirectory() as folder:
        source = write_dcp(Path(folder) / "source", saved, files=data.draw(st.integers(1, 3)))
        if data.draw(st.booleans()):
            (source / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
            assert reshard.inspect(source).format == "torch_dist"
        assert_same_arrays(reshard.restore(source), held)
        layout = data.draw(layouts(held, only_meshes=target.only_meshes))
        there = converted(source, target, Path(folder) / "there", layout=layout)
        assert_same_arrays(target.read(there), held)
        assert reshard.verify(source, there).differences == 0
        name = data.draw(st.sampled_from(sorted(held)))
        box = data.draw(boxes(held[name].shape))
        text = ",".join(f"{part.start}:{part.stop}" for part in box) or None
        stream = reshard.open_checkpoint(source).stream(name, text, max_memory=MAX_MEMORY)
        assert b"".join(stream) == held[name][box].tobytes()
