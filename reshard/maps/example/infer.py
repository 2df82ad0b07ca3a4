"""Infers a map from the outputs of a trusted script for probes, and proves it on them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from reshard.answers.record import Record, counted
from reshard.engine.cast import converted
from reshard.errors import ReshardError
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Grid
from reshard.layout.layout_text import flow
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.example.copies import Named, TargetCopies, UnexplainedError, copies_of, split_name
from reshard.maps.example.drafts import RuleDraft, drafts_of
from reshard.maps.example.naming import Naming
from reshard.maps.example.pair import pair_origins
from reshard.maps.example.probes import Numbering, Origins, read_origins
from reshard.maps.example.rule_text import RuleText, rule_text
from reshard.maps.given_map import map_of
from reshard.maps.mapped import MappedTensor
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Arrays = Mapping[str, Array]


class Example(Struct, frozen=True):
    """The probes of one tiny model, and the script's output for each; or a pair of real checkpoints.

    Attributes:
        sources: as ``make_probes`` gives them, or the one of a pair; ``targets``: in the same order.
        sizes: of the model, by name, say from its config.json; rules use these names.
    """

    sources: Sequence[Mapping[str, Any]]
    targets: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, int] = field(default_factory=dict)


class Inferred(Record, frozen=True):
    """A learned map, with its questions and problems.

    Attributes:
        text: the map file.
        questions: points that the examples leave open, a sentence each.
        problems: targets that no rule explains, a sentence each; the map is not complete then.
        asked: sizes to be given with the map, with their values in the first example.
    """

    text: str
    questions: tuple[str, ...]
    problems: tuple[str, ...]
    asked: Mapping[str, int]

    def __repr__(self) -> str:
        open_ = f", {counted(len(self.questions), 'question')}" if self.questions else ""
        left = (
            f", {counted(len(self.problems), 'problem')}"
            if self.problems
            else ", proved on the examples"
        )
        return f"Inferred({counted(self.text.count(chr(10) + '- '), 'rule')}{left}{open_})"


class _Learned(Struct, frozen=True):
    """The rules of one example.

    Attributes:
        copies: pairs of targets that are made alike of the same elements: the second, and the first.
        unused: source tensors that are not used; ``partly``: number of unused elements of those that are used in part.
    """

    rules: list[RuleText]
    problems: list[str]
    copies: list[tuple[str, str]]
    unused: list[str]
    partly: dict[str, int]


def infer(examples: Sequence[Example]) -> Inferred:
    """The map that makes the targets of all examples from their sources.

    It guesses nothing: a fact that the examples leave open is a question, and a target that no rule explains is a problem.
    """
    learned = [_learn(example) for example in examples]
    problems = [problem for one in learned for problem in one.problems]
    naming = Naming([example.sizes for example in examples])
    rules = _named_rules(learned, naming, problems)
    rules += [{"to": second, "same_as": first} for second, first in learned[0].copies]
    drops = _patterns(learned[0].unused)
    text = _text(naming, rules, drops)
    asked = {name: values[0] for name, values in naming.asked.items()}
    if rules and not problems:
        problems += _complaints(text, examples, naming, rules)
    questions = (*naming.notes, *_asked_text(naming))
    comments = "".join(f"# {line}\n" for line in questions)
    return Inferred(comments + text, questions, tuple(problems), asked)


def _named_rules(
    learned: Sequence[_Learned], naming: Naming, problems: list[str]
) -> list[dict[str, Any]]:
    """The rules that all examples have in common; the reason why one has no words goes to ``problems``."""
    rules: list[dict[str, Any]] = []
    for group in _same(learned, problems):
        try:
            rules.append(naming.rule(group))
        except ValueError as error:
            problems.append(f"{group[0].targets[0]}: {error}")
    return rules


def _complaints(
    text: str, examples: Sequence[Example], naming: Naming, rules: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The differences between targets and the map's output, for the first example that has any."""
    is_rounded = any({"multiply", "divide", "add"} & rule.keys() for rule in rules)
    for number, example in enumerate(examples):
        sizes = {name: values[number] for name, values in naming.asked.items()}
        if found := list(
            complaints(text, example.sources[-1], example.targets[-1], sizes, is_rounded=is_rounded)
        ):
            return found
    return []


def _asked_text(naming: Naming) -> Iterator[str]:
    for name, values in naming.asked.items():
        yield f"give --size {name}=N: no shape tells it; it was {' and '.join(map(str, values))} in the example{'s' if len(values) > 1 else ''}"


def _flat(example: Example, numbering: Numbering) -> list[Array]:
    """The elements of each source, in the order of their numbers."""
    import numpy as np

    wide = max((array.dtype.itemsize for array in example.sources[0].values()), default=0)
    dtype = np.float64 if wide > np.dtype(np.float32).itemsize else np.float32
    return [
        np.concatenate([source[n].astype(dtype).ravel() for n in numbering.names])
        for source in example.sources
    ]


def _learn(example: Example) -> _Learned:
    import numpy as np

    numbering = Numbering.of(example.sources[0])
    origins = _origins(example, numbering)
    flat = _flat(example, numbering)
    used = np.zeros(numbering.total + 1, bool)
    found: dict[str, TargetCopies] = {}
    problems, copies = list[str](), list[tuple[str, str]]()
    seen: dict[bytes, str] = {}
    for name in sorted(example.targets[0]):
        runs = [target[name] for target in example.targets]
        try:
            made = copies_of(origins[name], runs, example.sources[-1], flat, numbering)
        except UnexplainedError as error:
            problems.append(f"{name} is not explained: {error}")
            continue
        numbers = origins[name].numbers
        used[numbers[numbers >= 0]] = True
        facts = numbers.shape, made.fill, [copy.fit for copy in made.copies], runs[-1].dtype
        mark = repr(facts).encode() + numbers.tobytes()
        first = seen.setdefault(mark, name)
        if first == name or not made.copies:
            found[name] = made
        else:
            copies.append((name, first))
    kinds = {n: Named(n, a.shape, a.dtype.name) for n, a in example.targets[-1].items()}
    rules = list(_spelled(found, kinds, problems))
    unused, partly = _unused(numbering, used)
    return _Learned(rules, problems, copies, unused, partly)


def _origins(example: Example, numbering: Numbering) -> Mapping[str, Origins]:
    if len(example.sources) > 1:
        return read_origins(numbering, example.targets)
    sizes = [*example.sizes.values()]
    return pair_origins(numbering, example.sources[0], example.targets[0], sizes)


def _spelled(
    found: Mapping[str, TargetCopies], kinds: Mapping[str, Named], problems: list[str]
) -> Iterator[RuleText]:
    drafts: list[RuleDraft] = []
    try:
        drafts = drafts_of(found, kinds)
    except UnexplainedError:
        for name, copies in found.items():  # one of them: the others are learned alone
            try:
                drafts_of({name: copies}, kinds)
            except UnexplainedError as error:
                problems.append(f"{name} is not explained: {error}")
        left = {
            n: c for n, c in found.items() if not any(p.startswith(f"{n} is") for p in problems)
        }
        drafts = drafts_of(left, kinds) if len(left) < len(found) else []
    for draft in drafts:
        try:
            yield rule_text(draft)
        except UnexplainedError as error:
            problems.append(f"{draft.targets[0].kind.name} is not explained: {error}")


def _unused(numbering: Numbering, used: Array) -> tuple[list[str], dict[str, int]]:
    nothing, partly = [], {}
    for name, a, b in zip(numbering.names, numbering.first, numbering.first[1:], strict=False):
        left = int((~used[a:b]).sum())
        if left == b - a:
            nothing.append(name)
        elif left:
            partly[name] = left
    return nothing, partly


def _same(learned: Sequence[_Learned], problems: list[str]) -> Iterator[list[RuleText]]:
    """The spellings of each rule in all examples."""
    by_skeleton: list[dict[object, list[RuleText]]] = []
    for one in learned:
        groups: dict[object, list[RuleText]] = defaultdict(list)
        for rule in one.rules:
            groups[rule.skeleton].append(rule)
        by_skeleton.append(groups)
    for skeleton, rules in by_skeleton[0].items():
        others = [groups.get(skeleton, []) for groups in by_skeleton[1:]]
        if any(len(other) != len(rules) for other in others):
            problems.append(
                f"{rules[0].targets[0]}: the examples make it by different rules; choose sizes that differ from one another, and none of 1"
            )
            continue
        for number, rule in enumerate(rules):
            yield [rule, *(other[number] for other in others)]


def _patterns(names: Sequence[str]) -> list[str]:
    """Patterns of whole names, one for names that differ in numbers only."""
    kinds = dict.fromkeys(split_name(name)[0] for name in names)
    return [f"^{r'[0-9]+'.join(re.escape(part) for part in kind.split('{}'))}$" for kind in kinds]


def _text(naming: Naming, rules: Sequence[Mapping[str, Any]], drops: Sequence[str]) -> str:
    lines = []
    if naming.constants:
        lines.append(f"sizes: {flow(naming.constants)}")
    if drops:
        lines.append(f"drop: {flow(list(drops))}")
    lines.append("map:" if rules else "map: []")
    lines += [f"- {flow(rule)}" for rule in rules]
    return "\n".join(lines) + "\n"


def made_by(text: str, source: Arrays, sizes: Mapping[str, int]) -> dict[str, Array]:
    """The arrays that a map makes of others, in memory. Raises the errors of a map that does not fit them."""
    given = map_of(text if "\n" in text else f"{text}\n", sizes)
    if given is None:
        return {}
    specs = {
        name: TensorSpec(name, array.shape, array.dtype.name, Grid.whole(array.shape))
        for name, array in source.items()
    }
    kept = [r.source for r in rewrites(given.changes, list(specs), specs)]
    mapping = given.applied({name: specs[name] for name in kept})
    return {made.spec.name: _filled(made, source) for made in mapping.tensors}


def _filled(made: MappedTensor, source: Arrays) -> Array:
    import numpy as np

    out = np.zeros(made.spec.shape, numpy_dtype(made.spec.dtype))
    for piece in made.pieces:
        place = out if piece.target_view is None else out.reshape(piece.target_view.shape)
        place[piece.target_box.slices] = _elements(piece, source, out.dtype)
    return out


def _elements(piece: Piece, source: Arrays, dtype: Any) -> Array:
    import numpy as np

    if piece.fill is not None:
        return np.broadcast_to(np.frombuffer(piece.fill, dtype), piece.target_box.shape)
    array = source[piece.source]
    seen = array if piece.source_view is None else array.reshape(piece.source_view.shape)
    turned = seen[piece.source_box.slices].transpose(piece.axis_order)
    if not piece.is_computed:
        return turned
    return converted(turned, dtype, saturate=piece.saturate, arithmetic=piece.arithmetic)


def complaints(
    text: str, source: Arrays, target: Arrays, sizes: Mapping[str, int], *, is_rounded: bool
) -> Iterator[str]:
    """The differences between ``target`` and the map's output for ``source``; ``is_rounded`` allows two units in the last place."""
    try:
        made = made_by(text, source, sizes)
    except ReshardError as error:
        yield f"the map does not fit the example: {error}"
        return
    for name, array in made.items():
        if name not in target:
            yield f"the map makes {name!r}, which the script does not"
        elif array.shape != target[name].shape or array.dtype != target[name].dtype:
            made_by_script = f"{target[name].dtype.name} {list(target[name].shape)}"
            yield f"the map makes {name!r} of {array.dtype.name} {list(array.shape)}, the script of {made_by_script}"
        elif off := _differing(array, target[name], is_rounded=is_rounded):
            yield f"{name!r} differs in {off:,} of {array.size:,} elements"
    for name in target:
        if name not in made:
            yield f"the map makes no {name!r}"


def _differing(made: Array, wanted: Array, *, is_rounded: bool) -> int:
    import ml_dtypes
    import numpy as np

    unlike = made.view("u1").reshape(-1) != wanted.view("u1").reshape(-1) if made.size else made
    if not unlike.any():
        return 0
    a, b = made.astype(np.float64), wanted.astype(np.float64)
    slack = 0.0
    if is_rounded and made.dtype.kind not in "iub":
        info = ml_dtypes.finfo(made.dtype)  # type: ignore[no-untyped-call] # ml_dtypes has no types for it
        slack = 4.01 * 2.0 ** -(info.nmant + 1)
    is_near = (a == b) | (np.abs(a - b) <= slack * np.abs(b))
    return int((~is_near).sum())
