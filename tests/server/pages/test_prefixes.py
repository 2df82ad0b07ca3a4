"""The pages show checkpoints of TensorFlow by their prefix and torch's DCP folders, and start conversions from and to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reshard_server.db.conversions import conversions

import reshard
from tests.dcp_files import whole, write_dcp
from tests.server.pages.browser import Browser
from tests.server.served import Served

WEIGHTS = np.arange(48, dtype=np.float32).reshape(8, 6)
FORM = "/new-conversion"


@pytest.fixture
def data(served: Served, tmp_path: Path) -> Path:  # noqa: ARG001  it makes the root
    data = tmp_path / "data"
    reshard.save(tmp_path / "saved", {"w": WEIGHTS})
    for name in ("run/ckpt-1", "run/ckpt-2", "best"):
        reshard.convert(tmp_path / "saved", data / name, to="tensorflow")
    write_dcp(data / "torch" / "step-5", {"w": whole(WEIGHTS)})
    return data


@pytest.mark.usefixtures("data")
def test_browsed_and_shown(ann: Browser) -> None:
    page = ann.go("/checkpoints?root=data")
    shown = [link for link in page.links if link.startswith(("/checkpoint?", "/checkpoints?root"))]
    assert "/checkpoint?path=data/best" in shown
    assert "tensorflow" in page.text and "2 steps" in page.text
    assert ".index" not in page.text and ".data-" not in page.text
    for step in ("run/ckpt-2", "torch/step-5"):
        assert f"/new-conversion?source=data/{step}" in page.links
    page = ann.go("/checkpoints?root=data&prefix=run")
    assert "data/run/ckpt-1" in page.text and "data/run/ckpt-2" in page.text
    page = ann.go("/checkpoints?root=data&prefix=torch")
    assert "data/torch/step-5" in page.text and "dcp" in page.text
    for path, kind in (("run/ckpt-2", "tensorflow"), ("torch/step-5", "dcp")):
        page = ann.go(f"/checkpoint?path=data/{path}")
        assert (ann.status, f"Format {kind}" in " ".join(page.text.split())) == (200, True)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("source", "target", "to"),
    [
        ("data/run/ckpt-2", "data/out/model", "safetensors"),
        ("data/torch/step-5", "data/out/ckpt-1", "tensorflow"),
    ],
)
def test_previewed_and_started(
    served: Served, ann: Browser, source: str, target: str, to: str
) -> None:
    page = ann.go(FORM)
    for path in ("data/run/ckpt-2", "data/run/ckpt-1", "data/best", "data/torch/step-5"):
        assert f'<option value="{path}"' in ann.answer.text
    page = ann.submit(FORM, {"source": source, "target": target, "to": to}, do="preview")
    assert ann.status == 200 and "Preview: nothing has started yet" in page.text, page.text
    ann.submit(FORM, do="start")
    found = conversions.get(served.db, ann.path.removeprefix("/conversions/"))
    assert found is not None
    document = found.request.model_dump()
    assert (document["source"], document["target"], document["to"]) == (source, target, to)


@pytest.mark.usefixtures("data")
def test_the_form_takes_a_prefix_and_every_format(served: Served, ann: Browser) -> None:
    page = ann.go(f"{FORM}?source=data/run/ckpt-1")
    assert page.form(FORM).fields["source"] == "data/run/ckpt-1"
    answer = served.ask("GET", "/openapi.json", None)
    (to,) = {
        tuple(one["enum"])
        for schema in answer.json()["components"]["schemas"].values()
        for one in schema.get("properties", {}).get("to", {}).get("anyOf", [])
        if "enum" in one
    }
    assert set(to) == {"orbax", "safetensors", "dcp", "keras", "tensorflow"}
