"""Weights that are identified, and keys that sign them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

ED25519 = ["-algorithm", "ed25519"]
P256 = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "embed": rng.normal(size=(301, 257)).astype(np.float32),
        "layers": {"w": rng.normal(size=(4, 130, 70)).astype(np.float32), "n": np.int32(7)},
    }


def make_key(folder: Path, name: str, *kind: str) -> Path:
    """``NAME.pem`` and ``NAME.pub.pem``, by openssl; the private one."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    subprocess.run(["openssl", "genpkey", *kind, "-out", private], check=True, capture_output=True)
    said = ["openssl", "pkey", "-in", private, "-pubout", "-out", public]
    subprocess.run(said, check=True, capture_output=True)
    return private
