"""What the logger ``reshard`` says, and that nothing is printed unless a program listens."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reshard


def test_what_begins_and_what_has_ended_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with caplog.at_level(logging.INFO, "reshard"):
        reshard.save(a, {"w": np.ones((4, 4), np.float32)})
        reshard.convert(
            a,
            b,
            layout={
                "mesh": {"axes": ["x"], "shape": [2]},
                "rules": [{"match": "none", "axes": []}],
            },
        )
        reshard.restore(b)
        handle = reshard.save(tmp_path / "c", {"w": np.ones(2)}, wait=False)
        assert handle is not None
        handle.wait()
    said = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "reshard"
    ]
    assert said[:2] == [
        ("INFO", f"saved {str(a)!r}"),
        ("INFO", f"converting {str(a)!r} to {str(b)!r}"),
    ]
    assert said[2][1].startswith(f"converted 1 tensors of {str(a)!r} to {str(b)!r} in ")
    assert said[3] == ("WARNING", "rules[0] 'none' (layout) matches no tensor")
    assert said[4][1].startswith(f"restored 1 tensors of {str(b)!r} in ")
    assert said[5] == ("INFO", f"saved {str(tmp_path / 'c')!r}")


def test_nothing_is_printed_where_nobody_listens(tmp_path: Path) -> None:
    code = (
        "import logging, sys, numpy, reshard\n"
        "reshard.save(sys.argv[1], {'w': numpy.ones(4)})\n"
        "layout = {'rules': [{'match': 'none', 'axes': []}]}\n"
        "reshard.convert(sys.argv[1], sys.argv[1] + '-b', layout=layout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
