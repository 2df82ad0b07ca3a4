"""Many parts on one host, each a process; one of them is killed again and again: the target appears once, whole, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.campaigns import campaign
from tests.public.parts.in_parts import LAYOUT, LIMITS, files_of, names_in


@pytest.mark.parametrize(
    ("parts", "pause_s", "rows", "kind"),
    [
        (12, 0.1, 64, None),
        *campaign((200, 2.0, 256, None), (200, 0.2, 64, None), (12, 2.0, 64, "s3_bucket")),
    ],
)
def test_what_is_killed_again_and_again_ends_once(
    parts: int,
    pause_s: float,
    rows: int,
    kind: str | None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    bucket = request.getfixturevalue(kind) if kind else None
    rng, source = np.random.default_rng(3), tmp_path / "source"
    reshard.save(
        source,
        {
            f"big_{n:03}": rng.standard_normal((rows, 512)).astype(np.float32)
            for n in range(4 * parts)
        },
    )
    target = f"{bucket.url}/t" if bucket else str(tmp_path / "t")
    targets = [reshard.Target(target, layout=LAYOUT)]
    assert reshard.begin_parts(source, targets, parts, **LIMITS).parts == parts
    program = [sys.executable, "-m", "tests.public.parts.killed_often"]
    done = subprocess.run(
        [*program, target, str(parts), str(pause_s)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "too few were killed"
    assert reshard.commit(target).already_done
    if bucket:
        names = [entry["path"] for page in bucket.store().list() for entry in page]
        assert [name for name in names if "reshard" in name] == []
        assert reshard.verify(source, target).differences == 0
        return
    reshard.convert(source, tmp_path / "whole", layout=LAYOUT, **LIMITS)
    assert files_of(tmp_path / "t") == files_of(tmp_path / "whole")
    assert names_in(tmp_path) == ["source", "t", "whole"]
