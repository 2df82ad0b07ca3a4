"""The options and arguments that several commands share, their help texts and values, and their names in messages.

Help is rich markup, in which an opening bracket begins a style; literal brackets have a backslash.

``--ray`` and ``--part``: one conversion on many hosts. ``--ray`` may stand without a value, which typer does not support.

``--latency``, ``--bandwidth``, ``--hosts``, ``--cores`` and ``--nic``: the link and the machines for which a time is estimated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import reshard
from reshard.conversion.options import LIBRARY_NAMES
from reshard.errors import LayoutError, ReshardError
from reshard.geometry.sizes import parse_bytes

if TYPE_CHECKING:
    from concurrent.futures import Executor

RESOURCES = "Resources"


Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Let every host of this Ray cluster work, such as 10.0.0.1:6379; --max-memory and --workers are then those of each "
        "host, and SRC and DST must be seen by all. Without ADDRESS: the cluster of this host, or of the variable RAY_ADDRESS.",
        rich_help_panel=RESOURCES,
    ),
]


Part = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Do part I of N of this conversion, such as 3/16, on a host of its own; reshard commit DST makes the target appear when "
        "all parts are done. Every part takes the same options, --max-memory and --workers among them.",
        rich_help_panel=RESOURCES,
    ),
]


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


Latency = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="TIME",
        help="How long a request to the bucket takes, for the expected time; reshard doctor measures it. Default: 30ms.",
        rich_help_panel=RESOURCES,
    ),
]
Bandwidth = Annotated[
    int | None,
    typer.Option(
        parser=rate,
        metavar="SIZE/s",
        help="Bytes per second from or to the bucket, all requests together. Default: 150MB/s.",
        rich_help_panel=RESOURCES,
    ),
]


def link_of(latency: float | None, bandwidth: int | None) -> dict[str, float]:
    """The given options, under the names of ``RequestPlan.seconds``."""
    given = {"latency_s": latency, "bytes_per_s": bandwidth}
    return {name: value for name, value in given.items() if value is not None}


MOST = 1_000_000

Hosts = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="N",
        help="Also estimate the time on so many hosts that share the work, and name the bottleneck.",
        rich_help_panel=RESOURCES,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="N",
        help="Processors of each host, for that time. Default: those of this machine. Each of the --workers uses one.",
        rich_help_panel=RESOURCES,
    ),
]
Nic = Annotated[
    int | None,
    typer.Option(
        parser=rate,
        metavar="SIZE/s",
        help="Bytes per second of each host's network in each direction, such as 12.5GB/s, for that time.",
        rich_help_panel=RESOURCES,
    ),
]


def machines_of(hosts: int | None, cores: int | None, nic: int | None) -> dict[str, int]:
    """The given options, under the names of ``ConversionPlan.time``; empty if no time was asked for."""
    given = {"hosts": hosts, "cores": cores, "nic_bytes_per_s": nic}
    return {name: value for name, value in given.items() if value is not None}


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


Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="The checkpoint to read; with --step, the folder of a training run.",
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="N|latest",
        help="Read this step of the training run whose folder is given; latest is the last committed step.",
    ),
]
Item = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Read this item of a checkpoint that has several, such as model; names then begin below it.",
    ),
]
Unlisted = Annotated[
    reshard.Unlisted,
    typer.Option(
        metavar="leave|include",
        help="What to do with tensors and files of a safetensors folder that its index does not list: leave them out with a "
        "warning, or include them. With include, files of which it is not clear that they are one model are taken as "
        "one, and one file of several by itself.",
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        parser=size,
        metavar="SIZE",
        help="All buffers together stay below this, such as 512MiB. Default: a quarter of the "
        "memory, 1GiB at most.",
        rich_help_panel=RESOURCES,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tasks that run at once. Default: the number of processors, at least 2 and at most 16. "
        "With more than 4, a conversion of 4 GiB or more uses several processes.",
        rich_help_panel=RESOURCES,
    ),
]
ShowAll = Annotated[
    bool,
    typer.Option(
        "--all",
        help="A row for each tensor, however many there are, with every column, however wide the screen is.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="No progress and no report; warnings and errors are still written to stderr.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on stdout, also for errors; keys are stable."),
]


def examples(*lines: str) -> str:
    """The end of a command's help: example commands, one per line."""
    shown = (line if line.startswith(" ") else f"  $ {line}" for line in lines)
    return "\b\nExamples:\n" + "\n".join(shown).replace("[", "\\[")


# The library says "start over (restart)"; on the command line that is ``--restart``.
OPTION_NAMES = {
    "sizes": "size",  # given once for each
    "receiver": "for",
    **{argument: option for option, argument in LIBRARY_NAMES.items()},
}
_ARGUMENTS = (
    *reshard.ConvertOptions.__annotations__, "base_version", "item", "key", "max_memory", "name", "step", "unlisted", "workers"
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
