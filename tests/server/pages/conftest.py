"""A browser, a server with checkpoints, and the folder of the screenshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

import reshard
from tests.server.deliveries.receiver import secrets_file
from tests.server.live import Live, live
from tests.server.pages.chromium import PATIENCE_MILLISECONDS, SHOWN, chromium


@pytest.fixture(scope="session")
def pages_shown() -> Path | None:
    """The folder for screenshots of every page; None unless the environment names one."""
    folder = os.environ.get(SHOWN)
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """With a checkpoint of a layout, and one of two tensors."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    layout = reshard.LayoutMap(reshard.DeviceMesh((2, 2), ("data", "model")))
    layout["w"] = (("data", "model"), None)
    small = {"w": rng.random((64, 64), np.float32), "b": np.zeros(3, np.float32)}
    reshard.save(folder / "data" / "run" / "1", small, layout=layout)
    reshard.save(folder / "data" / "two", dict.fromkeys(("w1", "w2"), rng.random((64, 64))))
    told = {
        "notify_secrets_file": str(secrets_file(folder)),
        "notify_private": ["127.0.0.0/8"],
    }
    with live(folder, module="tests.server.patient", requests_per_minute=10**6, **told) as found:
        yield found
