"""Names of tensors for Hypothesis: paths of odd texts."""

from __future__ import annotations

from hypothesis import strategies as st

PARTS = st.text(
    st.sampled_from(list("ab01.*+?()[]{}|^$\\/ \n\té日٣²'\"#:-_")), max_size=5
) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
