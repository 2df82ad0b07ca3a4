"""State dicts of ``torch.save``, and Hugging Face's models of them, as a format that is read, without torch."""

from __future__ import annotations

from reshard.formats.format import About, Format, Mark, PlaceNames
from reshard.formats.marks import STATE_ENDINGS, is_bin_index
from reshard.formats.state_dict.files import files_beside, is_state, is_whole
from reshard.formats.state_dict.reader import (
    FORMAT,
    OPENED_LEAF_BYTES,
    leaf_count,
    open_state_dict,
)


def _recognise(names: PlaceNames) -> Mark | None:
    if names.kind == "file" and not (is_bin_index(names.name) or is_state(names.root)):
        return None
    return Mark(
        leaves=leaf_count,
        is_finished=is_whole,
        files=files_beside(names),
        # A run's folder may also hold a model, beside its checkpoints.
        runs="with steps" if names.kind == "folder" else "never",
    )


STATE_DICT = Format(
    about=About(
        name=FORMAT,
        title="torch state dicts",
        marks=f"torch state dicts ({', '.join(f'*{ending}' for ending in STATE_ENDINGS[:4])})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        mixes_values=True,
        may_be_file=lambda name: name.endswith(STATE_ENDINGS),
        is_index=is_bin_index,
        is_flat=True,
    ),
    recognise=_recognise,
    open=lambda root, how: open_state_dict(root, how.uri, how.unlisted),
)
