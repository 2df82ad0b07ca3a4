"""Arguments of the library in messages of the command line."""

from __future__ import annotations

import inspect

import pytest

import reshard
from reshard.cli import options
from reshard.cli.options import as_options


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("start over (restart)", "start over (--restart)"),
        ("give its name too (name)", "give its name too (--name)"),
        ("narrow it (select, cast)", "narrow it (--select, --cast)"),
        ("allow less (max_memory, workers), again", "allow less (--max-memory, --workers), again"),
        ("allow max_memory of 5MiB", "allow --max-memory of 5MiB"),
        ("also read it again (check)", "also read it again (--verify)"),
        ('also read it again (check="readback")', "also read it again (--verify readback)"),
        ('take them too (unlisted="include")', "take them too (--unlisted include)"),
        ("but max_memory is 5MiB; chunk_bytes: no", "but --max-memory is 5MiB; --chunk-bytes: no"),
    ],
)
def test_arguments_become_options(said: str, shown: str) -> None:
    assert as_options(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "restart the cast of layout 'x'",
        "'runs/max_memory/1' is gone",
        "tensor 'max_memory' of shape [2]",
        "the mesh (model=8)",
        "params(select)x (select me)".replace("(select)", "[select]"),
    ],
)
def test_names_and_prose_stay(said: str) -> None:
    assert as_options(said) == said


def test_every_argument_is_one_of_a_public_function() -> None:
    functions = (reshard.convert, reshard.delta, reshard.merge, reshard.sign)
    given = {name for function in functions for name in inspect.signature(function).parameters}
    assert set(options._ARGUMENTS) <= given
