"""Conversions of the suite: each tells its plan and its proof, and is done once only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import reshard
from reshard.checksums.sums import digest_of_bytes
from tests.conformance.forms import Form
from tests.conformance.trees import Arrays

MAX_MEMORY = 24 << 20


def converted(source: Path, form: Form, target: Path, **given: Any) -> Path:
    """The path of the target, once what its plan, its report and a second run say is checked."""
    path = path_of(target, form)
    options = {"check": "readback", "max_memory": MAX_MEMORY, **form.options, **given}
    plan = reshard.plan(source, path, **options)
    assert plan.peak_bytes <= MAX_MEMORY
    report = reshard.convert(source, path, **options)
    assert_proved(report, form.read(path))
    assert reshard.convert(source, path, **options).already_done
    return path


def path_of(target: Path, form: Form) -> Path:
    """The path with the ending of the form."""
    return target.with_name(target.name + form.ending)


def assert_proved(report: reshard.ConversionReport, held: Arrays) -> None:
    """Every tensor was read again, and has the digest of its bytes."""
    assert {tensor.target for tensor in report.tensors} == set(held)
    for tensor in report.tensors:
        digest = f"{digest_of_bytes(np.ascontiguousarray(held[tensor.target]).tobytes()):016x}"
        assert (tensor.proof, tensor.target_digest) == ("proved", digest), tensor.target
        assert tensor.source_digest in (None, digest), tensor.target
