"""What each form holds, what it refuses, and that memory does not grow with a tensor."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

import reshard
from tests.conformance.conversions import MAX_MEMORY, converted, path_of
from tests.conformance.forms import FORMS, Form
from tests.conformance.same import assert_same_arrays
from tests.equal import assert_same_trees
from tests.orbax_trees import DTYPES, random_array, save_pytree

LAYOUT = {"mesh": {"x": 4}, "rules": [{"match": "^w$", "axes": ["x"]}], "unmatched": "replicate"}

each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)


@each_form
def test_dtypes_are_held_or_refused(form: Form, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tree = {dtype: random_array(rng, (4, 6), dtype) for dtype in DTYPES}
    saved = tmp_path / "saved"
    reshard.save(saved, tree)
    refused = sorted(set(DTYPES) - set(form.dtypes))
    for dtype in refused:
        with pytest.raises(reshard.PlanError, match=f"'{dtype}' is {dtype}, which .* do not have"):
            reshard.plan(saved, layout=LAYOUT, select=[f"^{dtype}$"], **form.options)
    target = converted(
        saved, form, tmp_path / "target", layout=LAYOUT, drop=[f"^{dtype}$" for dtype in refused]
    )
    assert_same_arrays(form.read(target), {dtype: tree[dtype] for dtype in form.dtypes})


@each_form
def test_leaves_that_are_no_tensors_are_held_or_refused(form: Form, tmp_path: Path) -> None:
    others = {"text": "a b", "none": None, "empty": {}, "key": jax.random.key(3)}
    saved = save_pytree(tmp_path / "saved", {"w": np.arange(8), **others})
    options = {"layout": LAYOUT, "drop": []}
    left_out = [name for name in others if not _holds(form, name)]
    if left_out:
        with pytest.raises(reshard.FormatError, match="cannot hold") as caught:
            reshard.convert(saved, path_of(tmp_path / "target", form), **options, **form.options)
        assert [name for name in left_out if f"'{name}'" not in str(caught.value)] == []
        assert sorted(tmp_path.iterdir()) == [saved]
        options["drop"] = [f"^{name}$" for name in left_out]
    target = converted(saved, form, tmp_path / "target", **options)
    expected = {k: v for k, v in reshard.restore(saved).items() if k not in left_out}
    assert_same_trees(reshard.restore(target), expected)


def _holds(form: Form, name: str) -> bool:
    if name == "key":
        return form.keys
    return not form.only_tensors or (form.texts and name == "text")


@pytest.mark.parametrize(("form", "to"), [*pairwise([*FORMS, FORMS[0]])], ids=lambda form: form.id)
def test_a_tensor_may_exceed_the_memory(form: Form, to: Form, tmp_path: Path) -> None:
    tree = {"w": np.random.default_rng(4).integers(0, 255, (5 * MAX_MEMORY >> 14, 4096), "uint8")}
    reshard.save(tmp_path / "saved", tree)
    source = converted(tmp_path / "saved", form, tmp_path / "source", **_large(form))
    target = converted(source, to, tmp_path / "target", **_large(to))
    assert_same_arrays(to.read(target), tree)


def _large(form: Form) -> dict[str, object]:
    """The layout, and chunks of a usual size: a file for each 200 bytes takes long."""
    return {"layout": LAYOUT, **({"chunk_bytes": "4MiB"} if form.format == "orbax" else {})}
