"""The tables of formats, made of the forms that the conformance suite runs."""

from __future__ import annotations

from collections.abc import Iterable

from tests.conformance.forms import FORMS, PAIRS, Form


def form_table() -> str:
    """What each form holds, and the options that make it."""
    rows = [
        [form.title, f"`{_options(form)}`", str(len(form.dtypes)), *map(_answer, _holds(form))]
        for form in FORMS
    ]
    head = ["form", "options", "dtypes", "strings, None", "PRNG keys", "partitions"]
    return _table(head, rows)


def pair_table() -> str:
    """The dtypes of every pair that the suite converts, with sources as rows and targets as columns."""
    dtypes = {(a.title, b.title): str(len({*a.dtypes} & {*b.dtypes})) for a, b in PAIRS}
    titles = [form.title for form in FORMS]
    rows = [[a, *(dtypes.get((a, b), "") for b in titles)] for a in titles]
    return _table(["from ↓ to →", *titles], rows)


def formats() -> str:
    """Both tables."""
    return f"{form_table()}\n\n## Pairs\n\nHow many dtypes each pair of forms converts:\n\n{pair_table()}"


def _options(form: Form) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in form.options.items())


def _holds(form: Form) -> tuple[bool, bool, bool]:
    return not form.only_tensors, form.keys, not form.only_meshes


def _answer(is_held: bool) -> str:
    return "yes" if is_held else "no"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
