"""``custom_metadata`` of Orbax: of the checkpoint in ``_CHECKPOINT_METADATA``, and of each tree in its ``_METADATA``."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Container
from reshard.formats.kept_metadata import KeptMetadata, json_texts, within_limits

_MEMBER = "custom_metadata"
_CHECKPOINT, _TREE = "checkpoint", "tree"


def metadata_of_orbax(container: Container, recorded: KeptMetadata) -> KeptMetadata:
    """The texts of a checkpoint, those that only its record has among them."""
    own = json_texts(_own(container))
    return within_limits(replace(recorded, custom={**recorded.custom, **own}))


def _own(container: Container) -> dict[str, Any]:
    """The container's own texts. Keys of several trees have the tree's name, so that none is taken for the only tree of another target."""
    trees = [item for item in container.items if item.is_tree]
    found = {
        f"{_TREE} {tree.name}" if trees[1:] else _TREE: tree.meta.get(_MEMBER) for tree in trees
    }
    found[_CHECKPOINT] = container.meta.get(_MEMBER)
    return {key: value for key, value in found.items() if value}


def with_custom_metadata(target: TargetCheckpoint) -> TargetCheckpoint:
    """The target with texts from another format in their own place, so that the record keeps only those that have none."""
    container = target.container
    held = _own(container)
    left = {key: text for key, text in target.metadata.custom.items() if key not in held}
    trees = [item for item in container.items if item.is_tree]
    if _CHECKPOINT in left:
        meta = {**container.meta, _MEMBER: json.loads(left.pop(_CHECKPOINT))}
        container = replace(container, meta=meta)
    if _TREE in left and len(trees) == 1:
        (tree,) = trees
        filled = replace(tree, meta={**tree.meta, _MEMBER: json.loads(left.pop(_TREE))})
        items = tuple(filled if item is tree else item for item in container.items)
        container = replace(container, items=items)
    return replace(target, container=container, metadata=replace(target.metadata, custom=left))
