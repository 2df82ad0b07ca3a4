"""Dtypes in every form that people write."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from reshard.geometry.dtypes import DTYPES, SHORT_NAMES, dtype_name, numpy_dtype


@pytest.mark.parametrize("name", DTYPES)
def test_every_form_of_a_dtype_has_its_name(name):
    dtype = numpy_dtype(name)
    forms = [name, dtype, dtype.type, dtype.newbyteorder(), np.zeros(1, dtype).dtype]
    forms += [getattr(module, name) for module in (jnp, ml_dtypes, np) if hasattr(module, name)]
    assert {dtype_name(form) for form in forms} == {name}


def test_short_names_are_those_of_the_same_size_and_kind():
    for short, name in SHORT_NAMES.items():
        assert dtype_name(short) == name
        assert short.strip("bfpBF") == name.strip("bfloat")
        assert numpy_dtype(name).itemsize * 8 == int(short.strip("bfpBF"))


@pytest.mark.parametrize(
    "other",
    [None, 3, "float33", "torch.bfloat16", "fp8", "", float, int, bool, object, np.floating, np.str_,
     np.dtype("U4"), np.dtype([("a", "f4")]), np.zeros(3), jnp.zeros(3), np.longdouble, np.datetime64],
)  # fmt: skip
def test_what_is_no_dtype_of_a_checkpoint_has_no_name(other):
    assert dtype_name(other) is None
