"""The pages show state dicts of torch.save, and start conversions of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.server.pages.browser import Browser
from tests.server.served import Served
from tests.state_files import write_state

WEIGHTS = np.arange(48, dtype=np.float32).reshape(8, 6)


def test_browsed_shown_and_chosen(ann: Browser, served: Served, tmp_path: Path) -> None:  # noqa: ARG001  it makes the root
    data = tmp_path / "data"
    write_state(data / "hf" / "pytorch_model.bin", {"w": WEIGHTS})
    write_state(data / "model.pt", {"w": WEIGHTS})
    page = ann.go("/checkpoints?root=data")
    assert "/checkpoint?path=data/hf" in page.links
    assert "torch" in page.text
    for path in ("data/hf", "data/model.pt"):
        page = ann.go(f"/checkpoint?path={path}")
        assert "torch" in page.text and "8×6" in page.text
    page = ann.go("/new-conversion?source=data/model.pt")
    assert 'value="torch"' not in page.html
