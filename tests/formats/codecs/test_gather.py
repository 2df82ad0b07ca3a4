"""Elements that lie any strides apart are what numpy sees there: with gaps, used again, in another order of axes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from reshard.formats.codecs import source
from reshard.formats.codecs.source import read_strided
from reshard.geometry.row_major import strided_span

axes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=4)


def read(shape: tuple[int, ...], strides: tuple[int, ...], stored: np.ndarray) -> np.ndarray:
    """The elements, read by ``read_strided``, which must not reach beyond them."""
    data = memoryview(stored.tobytes())

    def fill(offset: int, out: memoryview) -> None:
        assert offset + len(out) <= len(data)
        out[:] = data[offset : offset + len(out)]

    made = np.empty(shape, stored.dtype)
    read_strided(fill, 0, [stride * stored.itemsize for stride in strides], made)
    return made


def seen(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What is stored, and what numpy sees of it."""
    stored = np.arange(strided_span(shape, strides), dtype=np.int32)
    return stored, as_strided(stored, shape, [4 * stride for stride in strides])


@given(axes, st.sampled_from([8, 64, 1 << 18]))
def test_any_strides(axes: list[tuple[int, int]], scratch: int) -> None:
    shape, strides = zip(*axes, strict=True)
    stored, wanted = seen(shape, strides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "SCRATCH_BYTES", scratch)
        patch.setattr(source, "PAGE_BYTES", scratch // 4)
        assert read(shape, strides, stored).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 2), (3, 0)), ((3, 3000), (70_000, 20)), ((400, 700), (0, 1)), ((70_000, 3), (1, 0))],
)
def test_views_that_are_wide_or_as_long_as_what_is_stored(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    stored, wanted = seen(shape, strides)
    assert np.array_equal(read(shape, strides, stored), wanted)
