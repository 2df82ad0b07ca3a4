"""Held against real Keras: meshes, layouts and layout maps cross over and mean the same."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh
from keras.src.distribution import distribution_lib

from reshard import DeviceMesh, LayoutError, LayoutMap, MissingPackageError, TensorLayout
from reshard.layout.bridges.keras_distribution import keras_match
from reshard.layout.layout_map import Ambiguous, Match
from tests.layout.seed_documents import DOCUMENTS, KERAS_3_14, KERAS_3_TO_3_13, Document

DEVICES = jax.devices()
MESH = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1])
LAYOUTS = [("data",), ("model", None), (None, "model"), (("data", "model"),), ()]


def native(match: Match, entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keras' own map of a version that calls another function of ``re``."""
    monkeypatch.setattr(distribution_lib, "re", SimpleNamespace(fullmatch=getattr(re, match)))
    layouts = keras.distribution.LayoutMap(MESH.to_keras())
    for key, axes in entries.items():
        layouts[key] = axes
    return layouts


def test_meshes_cross_over_and_back() -> None:
    theirs = MESH.to_keras()
    assert isinstance(theirs, keras.distribution.DeviceMesh)
    assert theirs.backend_mesh == MESH.backend_mesh
    assert DeviceMesh.from_keras(theirs) == MESH
    named = keras.distribution.DeviceMesh((4, 2), ["data", "model"])
    assert DeviceMesh.from_keras(named) == DeviceMesh((4, 2), ("data", "model"), DEVICES)


def test_a_mesh_without_devices_takes_all_there_are() -> None:
    theirs = DeviceMesh((2, 4), ("data", "model")).to_keras()
    assert theirs.backend_mesh == Mesh(np.array(DEVICES).reshape(2, 4), ("data", "model"))
    with pytest.raises(
        LayoutError,
        match=r"the mesh \(x=4\) has no devices, and the 8 of jax.devices\(\) do not fill its 4 places; name them",
    ):
        DeviceMesh((4,), ("x",)).to_keras()


def test_axis_types_that_keras_lacks_are_refused() -> None:
    auto = DeviceMesh((8,), ("x",), DEVICES, axis_types=["Auto"])
    assert auto.to_keras().backend_mesh == auto.backend_mesh
    with pytest.raises(LayoutError, match=r"types \['Explicit'\], but those of Keras are Auto"):
        DeviceMesh((8,), ("x",), DEVICES, axis_types=["Explicit"]).to_keras()


@pytest.mark.parametrize("axes", [*LAYOUTS, ("data", None, "model"), (None, ("model", "data"))])
def test_layouts_cross_over_and_back(axes: Any) -> None:
    ours = TensorLayout(axes, MESH)
    theirs = ours.to_keras()
    assert isinstance(theirs, keras.distribution.TensorLayout)
    assert theirs.backend_layout == ours.backend_layout
    assert TensorLayout.from_keras(theirs) == ours
    bare = TensorLayout(axes).to_keras()
    assert bare.device_mesh is None
    bare.device_mesh = MESH.to_keras()
    assert bare.backend_layout == ours.backend_layout


def test_nested_axes_are_checked_where_keras_cannot() -> None:
    bare = TensorLayout((("data", "x"),)).to_keras()
    with pytest.raises(LayoutError, match=r"invalid axis names for layout \[\[data, x\]\]: 'x'"):
        bare.device_mesh = MESH.to_keras()


@pytest.mark.parametrize("kind", [DeviceMesh, TensorLayout, LayoutMap])
def test_what_is_not_of_keras_is_refused(kind: Any) -> None:
    with pytest.raises(
        LayoutError, match=rf"expected a keras.distribution.{kind.__name__}, found a str: 'x'"
    ):
        kind.from_keras("x")


def test_an_axis_that_keras_takes_twice_is_refused() -> None:
    theirs = keras.distribution.TensorLayout(("data", "data"), MESH.to_keras())
    with pytest.raises(LayoutError, match="'data' is used twice"):
        TensorLayout.from_keras(theirs)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_documents_give_their_answers(document: Document) -> None:
    ours = document.layouts()
    theirs = ours.to_keras()
    for name, axes in document.answers.items():
        found = ours[name]
        assert (found and found.axes) == axes
        assert found is None or found.device_mesh == ours.device_mesh
        assert (theirs[name] and theirs[name].axes) == axes


@pytest.mark.parametrize("document", [KERAS_3_TO_3_13, KERAS_3_14], ids=lambda d: d.name)
def test_documents_give_the_answers_of_keras(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {k: e.axes if isinstance(e, TensorLayout) else e for k, e in document.entries.items()}
    mesh = DeviceMesh((4, 2), ("batch", "model"))
    monkeypatch.setattr(sys.modules[__name__], "MESH", mesh)
    theirs = native(document.match, entries, monkeypatch)
    for name, axes in document.answers.items():
        assert (theirs[name] and theirs[name].axes) == axes


KEYS = st.text("ab.*/$", min_size=1, max_size=4).filter(lambda k: is_pattern(k))
NAMES = st.text("ab/", max_size=5)


def is_pattern(key: str) -> bool:
    try:
        re.compile(key)
    except re.error:
        return False
    return True


def outcome(layouts: Any, name: str) -> Any:
    try:
        found = layouts[name]
    except ValueError as error:
        assert "matches multiple layout specification keys" in str(error)
        return "ambiguous"
    return found and found.backend_layout


@given(
    st.sampled_from(["search", "match", "fullmatch"]),
    st.dictionaries(
        KEYS, st.sampled_from([("data",), ("model", None), (None, "model")]), max_size=4
    ),
    st.lists(NAMES, min_size=1, max_size=6),
)
def test_look_up_is_that_of_keras(match: Match, entries: dict[str, Any], names: list[str]) -> None:
    ours = LayoutMap(MESH, match=match)
    for key, axes in entries.items():
        ours[key] = axes
    bridged = ours.to_keras()
    with pytest.MonkeyPatch.context() as patched:
        theirs = native(match, entries, patched)
        assert (len(ours), list(ours)) == (len(theirs), list(theirs))
        for name in [*names, *entries]:
            assert outcome(ours, name) == outcome(theirs, name) == outcome(bridged, name)


@given(
    st.sampled_from(["search", "match", "fullmatch"]),
    st.sampled_from(["error", "first"]),
    st.dictionaries(KEYS, st.sampled_from(LAYOUTS), max_size=4),
    st.lists(NAMES, min_size=1, max_size=6),
)
def test_maps_survive_the_round_trip(
    match: Match, ambiguous: Ambiguous, entries: dict[str, Any], names: list[str]
) -> None:
    ours = LayoutMap(MESH, match, ambiguous)
    for key, axes in entries.items():
        ours[key] = axes
    bridged = ours.to_keras()
    back = LayoutMap.from_keras(bridged)
    for name in [*names, *entries]:
        assert outcome(ours, name) == outcome(bridged, name) == outcome(back, name)


def test_a_map_of_keras_keeps_its_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    for match in ("search", "match", "fullmatch"):
        theirs = native(match, {"a.": ("data",), "b": (None, "model")}, monkeypatch)
        assert keras_match() == match
        ours = LayoutMap.from_keras(theirs)
        assert ours.device_mesh == MESH
        for name in ("ab", "abc", "xab", "b", "bc", "x"):
            assert outcome(ours, name) == outcome(theirs, name)


def test_the_installed_keras_wants_full_matches() -> None:
    assert keras_match() == "fullmatch"


def test_a_bridged_map_is_a_dict_and_a_copy() -> None:
    ours = LayoutMap(MESH)
    ours["a"] = ("data",)
    theirs = ours.to_keras()
    assert isinstance(theirs, keras.distribution.LayoutMap)
    assert ("a" in theirs, "xa" in theirs, len(theirs), list(theirs)) == (True, False, 1, ["a"])
    theirs["b"] = ["model"]
    theirs["c"] = keras.distribution.TensorLayout((None, "model"))
    assert theirs["xb"].backend_layout == TensorLayout(("model",), MESH).backend_layout
    assert theirs.get("c").device_mesh is theirs.device_mesh
    assert (theirs.get("z"), theirs.get("z", 1)) == (None, 1)
    assert list(ours) == ["a"]
    with pytest.raises(ValueError, match="b already exist in the LayoutMap"):
        theirs["b"] = ("data",)
    del theirs["b"]
    assert theirs.pop("c").axes == (None, "model")
    assert theirs.pop("c", None) is None
    assert theirs.setdefault("d", ("data",)).axes == ("data",)
    assert theirs.setdefault("d", ("model",)).axes == ("data",)
    assert list(LayoutMap.from_keras(theirs)) == ["a", "d"]
    assert "match='search'" in repr(theirs)


def test_equal_layouts_and_meshes_are_one_object_of_keras() -> None:
    ours = LayoutMap(MESH)
    ours["a"], ours["b"] = ("data",), ("data",)
    ours["c"] = TensorLayout(("x",), DeviceMesh((8,), ("x",), DEVICES))
    theirs = ours.to_keras()
    assert theirs["a"] is theirs["b"]
    assert theirs["a"].device_mesh is theirs.device_mesh
    assert theirs["c"].backend_layout == ours["c"].backend_layout


def test_maps_without_a_mesh() -> None:
    ours = LayoutMap()
    ours["a"] = ("data",)
    theirs = ours.to_keras()
    assert (theirs.device_mesh, theirs["a"].device_mesh) == (None, None)
    plain = keras.distribution.LayoutMap(None)
    plain["a"] = ("data",)
    assert LayoutMap.from_keras(plain)["a"] == TensorLayout(("data",))


def test_without_keras_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(
        MissingPackageError,
        match=r"needs Keras 3 on jax, which cannot be imported: .*; install it with 'pip install "
        r"keras', and set KERAS_BACKEND=jax before it is first imported",
    ):
        MESH.to_keras()
    with pytest.raises(ImportError):
        LayoutMap.from_keras("x")


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(MissingPackageError, match="needs Keras on jax, but its backend is numpy"):
        TensorLayout(()).to_keras()
