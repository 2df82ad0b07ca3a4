"""Every form to every form and back: no bit, name, dtype, shape or layout is lost on the way."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import reshard
from tests.campaigns import examples
from tests.conformance.conversions import MAX_MEMORY, assert_proved, converted, path_of
from tests.conformance.forms import FORMS, PAIRS, Form
from tests.conformance.same import assert_same_arrays
from tests.conformance.trees import Arrays, boxes, flat, layouts, trees
from tests.equal import assert_same_trees

few = settings(max_examples=examples(4), phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""An example takes about a second; to shrink one takes minutes."""


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda form: form.id)
@few
@given(st.data())
def test_to_the_target_and_back(source: Form, target: Form, data: st.DataObject) -> None:
    dtypes = [dtype for dtype in source.dtypes if dtype in target.dtypes]
    tree = data.draw(trees(dtypes))
    held = flat(tree)
    with tempfile.TemporaryDirectory() as folder:
        made = made_as(source, tree, Path(folder), data)
        there = converted(
            made, target, Path(folder) / "there", layout=layout_for(target, held, data)
        )
        assert_holds(there, target, held, data)
        assert reshard.verify(made, there).differences == 0
        layout = None if keeps_layouts(there, source) else layout_for(source, held, data)
        back = converted(there, source, Path(folder) / "back", layout=layout)
        assert_holds(back, source, held, data)
        assert_same_trees(reshard.restore(back), tree)
        if layout is None:
            assert layouts_of(back) == layouts_of(there)
        assert reshard.verify(made, back).differences == 0


@pytest.mark.parametrize("source", FORMS, ids=lambda form: form.id)
@few
@given(st.data())
def test_to_every_form_in_one_read(source: Form, data: st.DataObject) -> None:
    dtypes = [dtype for dtype in source.dtypes if all(dtype in form.dtypes for form in FORMS)]
    tree = data.draw(trees(dtypes))
    held = flat(tree)
    with tempfile.TemporaryDirectory() as folder:
        made = made_as(source, tree, Path(folder), data)
        asked = [
            reshard.Target(
                path_of(Path(folder) / f"{number}", form),
                layout=layout_for(form, held, data),
                check="readback",
                **form.options,
            )
            for number, form in enumerate(FORMS)
        ]
        assert reshard.plan_all(made, asked, max_memory=MAX_MEMORY).total.peak_bytes <= MAX_MEMORY
        report = reshard.convert_all(made, asked, max_memory=MAX_MEMORY)
        # Chunks that are copied as they are have a read of their own; all others share one.
        assert report.read_bytes <= 2 * max(each.read_bytes for each in report.reports)
        for one, form, each in zip(asked, FORMS, report.reports, strict=True):
            assert_proved(each, held)
            assert_holds(Path(one.target), form, held, data)
        again = reshard.convert_all(made, asked, max_memory=MAX_MEMORY)
        assert all(each.already_done for each in again.reports)


def made_as(form: Form, tree: Any, folder: Path, data: st.DataObject) -> Path:
    """A checkpoint of the form."""
    reshard.save(folder / "saved", tree)
    layout = layout_for(form, flat(tree), data)
    made = converted(folder / "saved", form, folder / "made", layout=layout)
    assert_same_arrays(form.read(made), flat(tree))
    return made


def layout_for(form: Form, held: Arrays, data: st.DataObject) -> Any:
    return data.draw(layouts(held, only_meshes=form.only_meshes))


def keeps_layouts(path: Path, form: Form) -> bool:
    """Whether the form can have the layouts that a checkpoint has."""
    return not form.only_meshes or all(
        tensor.spec.layout is not None for tensor in reshard.inspect(path).tensors.values()
    )


def layouts_of(path: Path) -> dict[str, Any]:
    """The axes of each tensor and its mesh, without the types of axes, which Orbax always records."""
    layouts = {n: tensor.spec.layout for n, tensor in reshard.inspect(path).tensors.items()}
    return {
        name: layout and layout.device_mesh and (layout.axes, str(layout.device_mesh))
        for name, layout in layouts.items()
    }


def assert_holds(path: Path, form: Form, held: Arrays, data: st.DataObject) -> None:
    """The checkpoint holds these tensors, whichever way they are read."""
    assert_same_arrays(form.read(path), held)
    assert_same_arrays(flat(reshard.restore(path)), held)
    info = reshard.inspect(path)
    assert info.format == form.format
    assert {n: (t.spec.dtype, t.spec.shape) for n, t in info.tensors.items()} == {
        name: (array.dtype.name, array.shape) for name, array in held.items()
    }
    name = data.draw(st.sampled_from(sorted(held)))
    box = data.draw(boxes(held[name].shape))
    text = ",".join(f"{part.start}:{part.stop}" for part in box) or None
    stream = reshard.open_checkpoint(path).stream(name, text, max_memory=MAX_MEMORY)
    assert b"".join(stream) == held[name][box].tobytes()
