"""The values of options: how words of the command line are parsed, and the names of options in messages.

``--ray`` and ``--part``: one conversion on many hosts. ``--ray`` may stand without a value, which typer does not support.

``--latency``, ``--bandwidth``, ``--hosts``, ``--cores`` and ``--nic``: the link and the machines for which a time is estimated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import reshard
from reshard.conversion.options import LIBRARY_NAMES
from reshard.errors import LayoutError, ReshardError
from reshard.geometry.sizes import parse_bytes

if TYPE_CHECKING:
    from concurrent.futures import Executor


@contextmanager
def ray_cluster(address: str | None) -> Iterator[dict[str, Executor]]:
    """The executor of a cluster for the block, as ``reshard.convert`` takes it; nothing where none was asked for."""
    if address is None:
        yield {}
        return
    from reshard.executors.ray import RayExecutor

    # Ray tells of lost workers on stdout, which is for the answer.
    with redirect_stdout(sys.stderr), RayExecutor(address) as executor:
        yield {"executor": executor}


_ADDRESS = re.compile(r"auto|[^/:\s]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+", re.ASCII)

DEFAULTS = {"--ray": "auto"}
"""Options that may stand without a value, and the value that they have then."""


def completed(args: Sequence[str]) -> list[str]:
    """The words of a command line, with the value of each option that stands without one.

    A word after ``--ray`` is its value only if it is an address.

    >>> completed(["convert", "--ray", "src", "dst"])
    ['convert', '--ray', 'auto', 'src', 'dst']
    >>> completed(["convert", "src", "dst", "--ray", "10.0.0.1:6379"])
    ['convert', 'src', 'dst', '--ray', '10.0.0.1:6379']
    """
    found: list[str] = []
    for word, after in zip(args, (*args, "")[1:], strict=True):
        found.append(word)
        if word in DEFAULTS and not _ADDRESS.fullmatch(after):
            found.append(DEFAULTS[word])
    return found


_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s)", re.ASCII)
_MOST_S = 3600.0


def duration(text: str) -> float:
    """The seconds in an option's text; a usage error says what was expected."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a time; expected a number with ms or s, such as 30ms"
        )
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds > _MOST_S:
        raise typer.BadParameter(f"{text!r} is too long for a request; expected at most an hour")
    return seconds


def rate(text: str) -> int:
    """The bytes per second in an option's text; a usage error says what was expected."""
    return size(text.removesuffix("/s"))


def link_of(latency: float | None, bandwidth: int | None) -> dict[str, float]:
    """The given options, under the names of ``RequestPlan.seconds``."""
    return given_of(latency_s=latency, bytes_per_s=bandwidth)


def machines_of(hosts: int | None, cores: int | None, nic: int | None) -> dict[str, int]:
    """The given options, under the names of ``ConversionPlan.time``; empty if no time was asked for."""
    return given_of(hosts=hosts, cores=cores, nic_bytes_per_s=nic)


def given_of(**options: Any) -> dict[str, Any]:
    """The options that are given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


class Misuse(typer.BadParameter):
    """A command line that makes no sense; its message is a whole sentence."""

    def format_message(self) -> str:
        """The message, without the ``Invalid value:`` that typer puts before it."""
        return self.message


@contextmanager
def usage() -> Iterator[None]:
    """Makes a usage error of an error that the words of the command line alone decide."""
    try:
        yield
    except ReshardError as error:
        raise Misuse(as_options(str(error))) from error


def size(text: str) -> int:
    """The number of bytes in an option's text; a usage error says what was expected."""
    try:
        nbytes = parse_bytes(text)
    except LayoutError as error:
        raise typer.BadParameter(str(error)) from None
    if nbytes < 1:
        raise typer.BadParameter(f"{text!r} is too small; expected at least 1 byte")
    return nbytes


_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def step_of(text: str | None) -> int | Literal["latest"] | None:
    """The step that --step names; a usage error for other words."""
    if text is None:
        return None
    if text == "latest":
        return "latest"
    if not _DIGITS.fullmatch(text):
        raise typer.BadParameter(f"--step {text!r}: expected the number of a step, or latest")
    return int(text)


Texts = list[str] | None
Size = Annotated[int | None, typer.Option(parser=size)]
Rate = Annotated[int | None, typer.Option(parser=rate)]
Duration = Annotated[float | None, typer.Option(parser=duration)]
Count = Annotated[int | None, typer.Option(min=1, max=1_000_000)]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="The checkpoint to read; with --step, the folder of a training run.",
    ),
]


# The library says "start over (restart)"; on the command line that is ``--restart``.
OPTION_NAMES = {
    "sizes": "size",  # given once for each
    "receiver": "for",
    "from_": "from",
    **{argument: option for option, argument in LIBRARY_NAMES.items()},
}
_ARGUMENTS = (
    *reshard.ConvertOptions.__annotations__, "base_version", "dequantize", "item", "key", "lora", "max_memory", "name", "quantize_like",
    "step", "unlisted", "workers", "base", "dtype", "ema", "from_", "last", "scale", "weights",
)  # fmt: skip
_ONE = "|".join(_ARGUMENTS)
_CHOSEN = re.compile(rf'(?<=\()({_ONE})="([a-z0-9]+)"(?=\))')
_LIST = re.compile(rf"\((?:{_ONE})(?:, (?:{_ONE}))*\)")
# Parts of paths and of tensors' names do not match: they have other characters beside them.
_CHOICE = re.compile(r"(?<![^\s(])(step|item)=('[^'\s]*'|[0-9]+|N)(?![^\s),;:])")
_WORD = re.compile(r"(?<![^\s(])(?:max_memory|chunk_bytes)(?![^\s),;:])")
_QUOTE = "'"


def as_options(message: str) -> str:
    """The message, in which every argument is written as its option.

    >>> as_options("start over (restart), or allow max_memory of 64MiB")
    'start over (--restart), or allow --max-memory of 64MiB'
    >>> as_options("give its size (sizes)")
    'give its size (--size)'
    """
    message = _CHOSEN.sub(lambda found: f"{_name(found[1])} {found[2]}", message)
    listed = _LIST.sub(lambda found: re.sub(_ONE, _option, found[0]), message)
    chosen = _CHOICE.sub(lambda found: f"--{found[1]} {found[2].strip(_QUOTE)}", listed)
    return _WORD.sub(_option, chosen)


def _option(found: re.Match[str]) -> str:
    return _name(found[0])


def _name(argument: str) -> str:
    return "--" + OPTION_NAMES.get(argument, argument).replace("_", "-")


_EXAMPLES = {
    "--cast": "float=bfloat16",
    "--rename": "'^params/=model/'",
    "--target": "serving.yaml=served",
}


def casts(rules: list[str] | None) -> list[tuple[str, str]]:
    """Pairs from ``RE=DTYPE`` or ``float=DTYPE``, split at the last ``=``."""
    return [_halves("--cast", "RE=DTYPE", rule, rule.rpartition("=")) for rule in rules or []]


def halves(option: str, form: str, rule: str) -> tuple[str, str]:
    r"""A rule split at its last ``=`` without a backslash; ``\=`` after it is an equals sign.

    The first half may be empty.
    """
    first, equals, second = _at_last_bare_equals(rule)
    if not equals or not second:
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return first, _ESCAPED_EQUALS.sub(r"\1=", second)


def sizes(texts: list[str] | None) -> dict[str, int]:
    """Sizes by name, from ``NAME=N`` each."""
    found: dict[str, int] = {}
    for text in texts or []:
        name, equals, number = text.partition("=")
        if not equals or not name.isidentifier() or not _DIGITS.fullmatch(number):
            raise Misuse(f"--size {text!r}: expected NAME=N, such as heads=32")
        if found.setdefault(name, int(number)) != int(number):
            raise Misuse(f"--size gives {name} as {found[name]} and as {int(number)}; give it once")
    return found


def renames(rules: list[str] | None) -> list[tuple[str, str]]:
    r"""Pairs from ``RE=NEW``, split at the last ``=`` without a backslash; ``\=`` in NEW is an equals sign."""
    pairs = [
        _halves("--rename", "RE=NEW", rule, _at_last_bare_equals(rule)) for rule in rules or []
    ]
    return [(pattern, _ESCAPED_EQUALS.sub(r"\1=", new)) for pattern, new in pairs]


_EQUALS = re.compile(r"(\\*)=")
_ESCAPED_EQUALS = re.compile(r"((?:\\\\)*)\\=")


def _at_last_bare_equals(rule: str) -> tuple[str, str, str]:
    bare = [m.end() - 1 for m in _EQUALS.finditer(rule) if len(m[1]) % 2 == 0]
    return (rule[: bare[-1]], "=", rule[bare[-1] + 1 :]) if bare else ("", "", rule)


def _halves(option: str, form: str, rule: str, split: tuple[str, str, str]) -> tuple[str, str]:
    pattern, equals, new = split
    if not equals or not pattern or (not new and option == "--cast"):
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return pattern, new
