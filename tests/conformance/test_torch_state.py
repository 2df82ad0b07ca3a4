"""State dicts of ``torch.save``, with any order of axes and shared storages, to every form; this project only reads them."""

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
from tests.dcp_files import STORAGES, turned
from tests.state_files import View, write_state

DTYPES = (*STORAGES, "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
KEYS = ("w", "layers.0.w", "a b", "ünï", "opt.0.lr")

pytestmark = pytest.mark.filterwarnings("ignore:tensors share their elements")
few = settings(max_examples=examples(5), phases=[Phase.explicit, Phase.reuse, Phase.generate])


@st.composite
def stored(draw: st.DrawFn, array: np.ndarray, key: str) -> Any:
    """The array in a storage of its own, in any order of axes; or row-major somewhere in a larger storage."""
    if draw(st.booleans()):
        return turned(array, draw(st.permutations(range(array.ndim))))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    filler = np.ones(before + after, array.dtype)
    storage = np.concatenate([filler[:before], array.reshape(-1), filler[before:]])
    stride = tuple(step // array.itemsize for step in np.ascontiguousarray(array).strides)
    return View(storage, f"of {key}", before, array.shape, stride[: array.ndim])


@pytest.mark.parametrize("target", FORMS, ids=lambda form: form.id)
@few
@given(st.data())
def test_to_every_form(target: Form, data: st.DataObject) -> None:
    dtypes = [dtype for dtype in DTYPES if dtype in target.dtypes]
    held: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(KEYS), arrays(dtypes), min_size=1))  # fmt: skip
    saved = {name: data.draw(stored(array, name)) for name, array in held.items()}
    tied = data.draw(st.sampled_from(sorted(held)))
    held["tied"] = held[tied]
    saved["tied"] = saved[tied]
    with tempfile.TemporaryDirectory() as folder:
        source = write_state(Path(folder) / "source.pt", saved)
        assert_same_arrays(reshard.restore(source), held)
        assert {one.status for one in reshard.verify(source).tensors} == {"checksum"}
        layout = data.draw(layouts(held, only_meshes=target.only_meshes))
        there = converted(source, target, Path(folder) / "there", layout=layout)
        assert_same_arrays(target.read(there), held)
        assert reshard.verify(source, there).differences == 0
        name = data.draw(st.sampled_from(sorted(held)))
        box = data.draw(boxes(held[name].shape))
        text = ",".join(f"{part.start}:{part.stop}" for part in box) or None
        stream = reshard.open_checkpoint(source).stream(name, text, max_memory=MAX_MEMORY)
        assert b"".join(stream) == held[name][box].tobytes()
