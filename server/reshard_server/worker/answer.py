"""Answers questions about checkpoints with the documents that ``docs/reference/json-output.md`` describes, and parts of them.

Runs in the child process: a hostile checkpoint can crash only the child, and the child can be ended when no client
waits for its answer.

A page gets a part of a plan, which may have many thousands of tensors and shards: the first ``MOST_TENSORS`` tensors, the number
of the others, and the shares of one tensor, if they are few enough to look at.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

import reshard
from reshard.answers.record import answer_of, plain, values
from reshard.conversion.plan import P, priced
from reshard.errors import MissingError
from reshard.identity.envelope import NoSignatureError
from reshard.inspection.checkpoint_info import recorded_identity
from reshard_server.worker.convert import ProgressThrottle

Document = dict[str, Any]


def answer(question: str, arguments: Document, progress: ProgressThrottle) -> Document:
    """The answer to a question, which has the name of the command that it runs."""
    return _ANSWERS[question](dict(arguments), progress)


def _verify(arguments: Document, progress: ProgressThrottle) -> Document:
    try:
        return answer_of("verify", reshard.verify(**arguments, progress=progress))
    except NoSignatureError as error:  # a client can name no other folder
        raise MissingError(
            f"{error.problem}; sign the checkpoint (reshard sign), or convert a signed one with identity carry, so that the signature "
            "travels"
        ) from None


def _layout(arguments: Document, _: ProgressThrottle) -> Document:
    preview = reshard.preview_layout(**arguments)
    return answer_of("layout", replace(preview, file="", source=arguments["source"]))


def _plan(shares: bool, link: dict[str, float], **arguments: Any) -> Document:
    """The plan, or those of several targets; with shares if they were asked for, and with its requests on the link."""
    if "targets" in arguments:
        targets = [reshard.Target(**target) for target in arguments.pop("targets")]
        return _priced(reshard.plan_all(targets=targets, **arguments), shares, link)
    return _priced(reshard.plan(**arguments), shares, link)


def _priced(planned: P, shares: bool, link: dict[str, float]) -> Document:
    found = planned.with_shares() if shares else planned
    return answer_of("plan", priced(found, found.request_plan, **link) if link else found)


def _picture(tensor: str | None, **arguments: Any) -> Document:
    return picture(reshard.plan(**arguments), tensor)


def _contents(arguments: Document, _: ProgressThrottle) -> Document:
    """A checkpoint's contents for a page: the first tensors only."""
    whole = answer_of("inspect", reshard.inspect(**arguments))
    kept = ("format", "style", "nbytes", "items", "meshes", "warnings")
    shown = {name: whole[name] for name in (*kept, "tensors")}
    identity = recorded_identity(arguments["path"])
    return {**_first_tensors("contents", shown), "identity": identity}


def _first_tensors(command: str, whole: Document) -> Document:
    """A part of a document for a page: the first tensors, and the number of all."""
    tensors = whole["tensors"]
    cut = {"tensors": tensors[:MOST_TENSORS], "count": len(tensors)}
    return {**whole, "command": command, **cut}


_ANSWERS: dict[str, Callable[[Document, ProgressThrottle], Document]] = {
    "inspect": lambda asked, _: answer_of("inspect", reshard.inspect(**asked)),
    "versions": lambda asked, _: answer_of(
        "inspect", uri=asked["path"], versions=plain(reshard.inspect_versions(**asked))
    ),
    "verify": _verify,
    "fingerprint": lambda asked, progress: answer_of(
        "fingerprint", reshard.fingerprint(**asked, progress=progress)
    ),
    "identify": lambda asked, progress: answer_of(
        "identify", reshard.identify(**asked, progress=progress)
    ),
    "layout": _layout,
    "starter": lambda asked, _: answer_of(
        "layout", source=asked["source"], starter=reshard.starter_layout(**asked)
    ),
    "plan": lambda asked, _: _plan(**asked),
    "plans": lambda asked, _: _plan(**asked),
    "picture": lambda asked, _: _picture(**asked),
    "contents": _contents,
    "layout_summary": lambda asked, _: _first_tensors("layout_summary", _layout(asked, _)),
}


MOST_TENSORS = 200
"""Tensors that a page lists one by one."""

MOST_PAIRS = 200_000
"""The shares are left out if more pairs of a target shard and a source shard overlap."""

Planned = Any
"""The result of ``reshard.api.plan``, or one of its tensors."""

Cuts = tuple[int, ...]


class PartOverlap(NamedTuple):
    """The overlap of the target's parts with the source's, along one dimension or over a whole tensor.

    Attributes:
        kept: for each target part, the elements from the source part that gives most of it; summed over the parts.
        least, most: the smallest and the largest number of source parts that one target part reads.
    """

    kept: int
    least: int
    most: int


def picture(planned: Planned, name: str | None) -> Document:
    """A plan for a page: the first tensors, and one of them with its shares.

    Args:
        name: of a tensor in the target; the tensor that moves most if it is None or unknown.
    """
    tensors = list(planned.tensors)
    whole = answer_of("plan", replace(planned, tensors=tensors[:MOST_TENSORS]))
    sizes = [(shard_bytes(t), t.partition is None) for t in tensors]
    is_mapped = planned.map is not None  # then shards of source and target have other shapes
    chosen = None if is_mapped else chosen_of(tensors, name)
    resplit = [] if is_mapped else [t for t in tensors if is_resplit(t)]
    return {
        **whole,
        "command": "picture",
        "tensors": [
            {**document, **_shards(t)}
            for document, t in zip(whole["tensors"], tensors, strict=False)
        ],
        "chosen": None if chosen is None else _with_shares(chosen),
        "resplit": {
            "tensors": len(resplit),
            "nbytes": sum(t.target_spec.nbytes for t in resplit),
            "of_nbytes": sum(t.target_spec.nbytes for t in tensors),
        },
        "device_bytes": sum(size for size, over_mesh in sizes if over_mesh),
        "partitioned_bytes": sum(size for size, over_mesh in sizes if not over_mesh),
    }


def chosen_of(tensors: Planned, name: str | None) -> Planned:
    """The tensor with this name, else the one that moves most; None if there are no tensors.

    If no tensor moves, a tensor with other shards in the target comes first, then the largest.
    """
    named = next((t for t in tensors if t.target == name), None)
    return named or max(
        tensors, key=lambda t: (moved_bytes(t), is_resplit(t), t.target_spec.nbytes), default=None
    )


def is_resplit(tensor: Planned) -> bool:
    """True if the tensor has other shards in the target than in the source."""
    return bool(tensor.source_spec.slices.cuts != tensor.target_spec.slices.cuts)


def moved_bytes(tensor: Planned) -> int:
    """Bytes of target shards that do not come from the source shard that gives the shard most."""
    spec = tensor.target_spec
    elements = math.prod(spec.shape)
    return spec.nbytes * (elements - overlap(tensor).kept) // elements if elements else 0


def overlap(tensor: Planned) -> PartOverlap:
    """The overlap of the target's shards with the source's. Shards are boxes, so each dimension is computed alone."""
    cuts = zip(tensor.source_spec.slices.cuts, tensor.target_spec.slices.cuts, strict=True)
    lines = [_overlap(source, target) for source, target in cuts]
    alone = zip(*lines, strict=True) if lines else ((), (), ())
    return PartOverlap(*(math.prod(values) for values in alone))


@lru_cache(maxsize=1024)
def _overlap(source: Cuts, target: Cuts) -> PartOverlap:
    """The overlap of two lists of cuts; cached, since layers of a model repeat their shapes and few pairs occur."""
    kept, counts = 0, []
    for start, stop in pairwise(target):
        touched = range(bisect_right(source, start) - 1, bisect_left(source, stop))
        kept += max(min(stop, source[i + 1]) - max(start, source[i]) for i in touched)
        counts.append(len(touched))
    return PartOverlap(kept, min(counts, default=0), max(counts, default=0))


def shard_bytes(tensor: Planned) -> int:
    """Bytes of the largest shard in the target."""
    spec = tensor.target_spec
    elements = math.prod(spec.shape)
    return spec.nbytes * math.prod(spec.slices.largest) // elements if elements else 0


def _shards(tensor: Planned) -> Document:
    source, target = tensor.source_spec.slices, tensor.target_spec.slices
    return {
        "source_parts": source.parts,
        "target_parts": target.parts,
        "target_shard_shape": target.largest,
        "target_shard_bytes": shard_bytes(tensor),
    }


def _with_shares(tensor: Planned) -> Document:
    """The document of a tensor; its ``shares`` are None if there are too many."""
    # Grids of s and t parts cut a line into at most s + t - 1 pieces, so that no more pairs overlap.
    both = zip(tensor.source_spec.slices.parts, tensor.target_spec.slices.parts, strict=False)
    few = math.prod(s + t - 1 for s, t in both) <= MOST_PAIRS
    document = values(tensor.with_shares() if few else tensor)
    found = overlap(tensor)
    return {
        "shares": None,
        **document,
        **_shards(tensor),
        "reads_from": [found.least, found.most],
        "is_resplit": is_resplit(tensor),
        "moved_bytes": moved_bytes(tensor),
    }
