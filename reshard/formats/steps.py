"""Steps: the folders of a training run; each is a checkpoint, named by its number.

Orbax's CheckpointManager names them ``1000``, ``00001000`` or ``step_1000``, depending on its options; transformers' Trainer
names them ``checkpoint-1000``, torchtitan ``step-1000``, Megatron ``iter_0001000``, and TensorFlow's have the prefix ``ckpt-1000``. A
folder may also contain unrelated checkpoints, such as ``small_1`` and ``large_2``: a number after any other word is a step only if a
CheckpointManager saved it (its option ``step_prefix`` takes any word), or the caller asks for a step.

A step is an Orbax checkpoint that was committed, a safetensors model with all of its files, a distributed checkpoint of torch
with its ``.metadata`` or those of all ranks, a model of ``torch.save`` whose files have their ends, or a checkpoint of TensorFlow with its
index: programs write these in place, without a mark at the end but the last of these files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from reshard.errors import NotACheckpointError
from reshard.formats.format import PlaceNames
from reshard.formats.known_formats import recognised
from reshard.formats.names import StepName, step_name, step_of_prefix
from reshard.formats.orbax.container import (
    final_name,
    is_composite,
    is_temporary,
)
from reshard.formats.orbax.format import ORBAX
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.calls import each_at_once
from reshard.storage.commit_markers import is_left_unfinished, is_marked
from reshard.storage.location import Location

LARGEST_STEP = 10**18 - 1

_SHOWN = 10


def committed_steps(folder: Location) -> dict[int, str]:
    """The finished checkpoints of steps below a folder: step numbers, ascending, and folder names.

    If two folders are for the same step, the first by name counts. Raises StorageError if the folder cannot be listed.
    """
    found: dict[int, str] = {}
    for one in run_steps(folder):
        found.setdefault(one.step, one.name)
    return found


def run_steps(folder: Location, *, any_prefix: bool = False) -> list[StepName]:
    """Every committed step of a run's folder, ascending; none for any other folder.

    All steps of a run have the same prefix, or none. If prefixes differ, only plain numbers count. Only where there are none of these, another
    word counts that a CheckpointManager put before its numbers.
    ``any_prefix``: True if any one word may be the prefix then.
    """
    folder = folder.remembered()
    found = _of_one_prefix(_committed(folder, _named_steps(folder)))
    return found or _of_one_word(folder, steps_of_words(folder), any_prefix=any_prefix)


def steps_of_words(folder: Location) -> list[StepName]:
    """The committed checkpoints in a folder whose number follows a word that no program uses for steps."""
    named = (step_name(name) for name in folder.folders())
    return sorted(
        _committed(folder, [one for one in named if one is not None and not one.is_usual])
    )


def _committed(folder: Location, named: list[StepName]) -> Iterator[StepName]:
    whole = each_at_once(folder.store, lambda one: _is_committed(folder / one.name), named)
    return compress(named, whole)


def _of_one_word(
    folder: Location, found: Sequence[StepName], *, any_prefix: bool
) -> list[StepName]:
    """The steps of the word that stands before most of the numbers."""
    if any_prefix and len({one.prefix for one in found}) == 1:
        return list(found)
    managed = [one for one in found if is_composite(folder / one.name)]
    counts = Counter(one.prefix for one in managed)
    prefix, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
    # Two of ``ema`` and one of ``model`` may be two runs; of three to one, the one is an odd copy, such as the best step.
    is_clear = count > 2 * (len(managed) - count)
    return [one for one in managed if is_clear and one.prefix == prefix]


def refuse_several_words(path: str, folder: Location) -> None:
    """Raises NotACheckpointError for a folder without steps in which several words stand before the numbers of checkpoints."""
    groups: dict[str, str] = {}
    for one in steps_of_words(folder):
        groups.setdefault(one.prefix, one.name)
    if len(groups) > 1:
        shown = ", ".join(f"{prefix} ({name})" for prefix, name in list(groups.items())[:_SHOWN])
        raise NotACheckpointError(
            f"{path} contains checkpoints with several words before their numbers: {shown}; it is not clear which are the steps of a run; give "
            "the path of one without a step (step), or move the others away"
        )


def named_steps(folder: Location) -> list[StepName]:
    """The names of steps in a run's folder, committed or not, ascending, by the rules of ``run_steps``."""
    folder = folder.remembered()
    return _of_one_prefix(_named_steps(folder)) or run_steps(folder)


def _named_steps(folder: Location) -> list[StepName]:
    found = (step_name(name) for name in folder.folders())
    named = [one for one in found if one is not None and one.is_usual]
    found = (step_of_prefix(name) for name in prefixes_in(folder))
    return named + [one for one in found if one is not None]


def _of_one_prefix(named: Iterable[StepName]) -> list[StepName]:
    steps = sorted(named)
    if len({one.prefix for one in steps}) > 1:
        return [one for one in steps if not one.prefix]
    return steps


def names_in(folder: Location) -> list[str]:
    """The names of possible checkpoints right below a folder, in order: folders and prefixes."""
    return sorted({*folder.folders(), *prefixes_in(folder)})


def begun_steps(folder: Location, prefix: str = "") -> list[StepName]:
    """Saves of steps in a run's folder that did not finish, or have not yet, ascending; ``name`` is the folder's.

    ``prefix``: of the finished steps, which may be any word.
    """
    folder = folder.remembered()
    named = [
        StepName(one.prefix, one.step, name)
        for name in folder.folders()
        if (one := step_name(final_name(name))) is not None
        and (one.is_usual or one.prefix == prefix)
    ]
    whole = each_at_once(folder.store, lambda one: _is_committed(folder / one.name), named)
    return sorted(one for one, is_whole in zip(named, whole, strict=True) if not is_whole)


def committed_among(folder: Location, names: Iterable[str]) -> list[str]:
    """The committed ones among these folders of a run.

    For Orbax by its own rule: on a local disk all that have their final name, in a bucket those with the marker, in one request for
    each. For other formats those with all files.
    """
    names = [name for name in names if not is_temporary(name)]
    seen = folder.remembered()
    whole = each_at_once(seen.store, lambda name: _is_whole(seen / name), names)
    return [name for name, is_whole in zip(names, whole, strict=True) if is_whole]


def _is_whole(step: Location) -> bool:
    """True if a folder with the name of a step may be read."""
    marked = is_marked(step)
    if marked:
        return True
    found = recognised(PlaceNames(step))
    if found is None:
        return marked is None and _lost_its_files(step)
    known, mark = found
    if known is ORBAX:
        return marked is None
    return mark.is_finished(step) and not is_left_unfinished(step)


def _lost_its_files(step: Location) -> bool:
    """True if a folder has folders only: an Orbax checkpoint that is being deleted, which was committed."""
    entries = step.entries()
    return bool(entries) and all(entry.is_folder for entry in entries)


def uncommitted(folder: Location, step: int) -> str | None:
    """The name of a folder of a save of ``step`` that did not finish; None if there is none."""
    folder = folder.remembered()
    for name in folder.folders():
        one = step_name(final_name(name))
        if one is not None and one.step == step and not _is_committed(folder / name):
            return name
    return None


def committed(folder: Location) -> Iterator[str]:
    """Names of the finished checkpoints right below a folder, in order."""
    folder = folder.remembered()
    return (name for name in names_in(folder) if _is_committed(folder / name))


def steps_text(steps: Iterable[int]) -> str:
    """``"steps 1, 2, 3"``; of many steps only the first and the last."""
    numbers = list(map(str, steps))
    if len(numbers) > _SHOWN:
        half = _SHOWN // 2
        text = ", ".join([*numbers[:half], "…", *numbers[-half:]])
        return f"{len(numbers)} steps: {text}"
    return f"step{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _is_committed(folder: Location) -> bool:
    """True if a folder has the marks of a finished checkpoint, and none of an unfinished one."""
    found = recognised(PlaceNames(folder))
    return found is not None and found[1].is_finished(folder) and not is_left_unfinished(folder)
