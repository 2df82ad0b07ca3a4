"""Groups of options that several commands share, each with what commands do with it.

A command has a parameter of a group's type, and ``spread`` gives typer the fields in its place.

``--server`` names the server to ask, ``--token-file`` has its token. Without ``--server`` the variable RESHARD_SERVER names the server.
``--server ''`` asks none.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from msgspec import Struct

import reshard
from reshard.cli.console import print_answer, show_view, warn
from reshard.cli.help_text import page_of, with_help
from reshard.cli.options import Misuse, Size, given_of, step_of

if TYPE_CHECKING:
    from reshard.cli.progress import Watcher


class Group(Struct, frozen=True):
    """Options that stand together in the help of a command, in the order of the fields."""


class StepAndItem(Group, frozen=True):
    """The part of a run or of a checkpoint with several items.

    Options:
        --step N|latest: Read this step of the training run whose folder is given; latest is the last committed step.
        --item NAME: Read this item of a checkpoint that has several, such as model; names then begin below it.
    """

    step: str | None = None
    item: str | None = None

    def of(self, src: str) -> str:
        """The path of the checkpoint that SRC, --step and --item name; ``latest`` is looked up here, once."""
        return reshard.locate(src, step=step_of(self.step), item=self.item)


class Chosen(StepAndItem, frozen=True):
    """The same, and the treatment of files that an index does not list.

    Options:
        --unlisted leave|include: What to do with tensors and files of a safetensors folder that its index does not list: leave them out
            with a warning, or include them. With include, files of which it is not clear that they are one model are taken as one, and
            one file of several by itself.
    """

    unlisted: reshard.Unlisted = "leave"

    @property
    def option(self) -> dict[str, Any]:
        """--unlisted as the library and requests take it; left out at its default, since an older server refuses it."""
        return {} if self.unlisted == "leave" else {"unlisted": self.unlisted}

    def there(self) -> dict[str, Any]:
        """The choice in the form of a request to a server; options at their defaults are left out."""
        return given_of(step=step_of(self.step), item=self.item, **self.option)


class Computed(Chosen, frozen=True):
    """The same, and what is computed of the weights as they are read.

    Changes on the way:
        --dequantize bfloat16|float32: Read quantised weights (fp8, int8, int4, mxfp4, nvfp4, …) as the weights that they stand for, in this
            dtype; maps and rules see those. Scales go, and config.json no longer speaks of them. Each weight is computed in float32 and
            then rounded, and the report says which are exact. Without it codes and scales are copied as they are.
        --lora ADAPTER[=SCALE]: Merge this LoRA adapter, a PEFT folder, into the weights; several times for several. SCALE, such as 0.5, is a
            part of its strength. Weights that are quantised need --dequantize, too.
    """

    dequantize: reshard.Dequantized | None = None
    lora: list[str] | None = None

    @property
    def option(self) -> dict[str, Any]:
        return {**super().option, **given_of(dequantize=self.dequantize, lora=self.lora or None)}


class Requantized(Computed, frozen=True):
    """The same, and a quantised checkpoint whose form the weights get.

    Changes on the way:
        --quantize-like CKPT: Write codes with the scales of this checkpoint, under its names: the way back, after weights were dequantised for
            another program. A weight that is too large for its scale is an error. New scales are not made: engines quantise as they
            load, and calibration has its own programs.
    """

    quantize_like: str | None = None

    @property
    def option(self) -> dict[str, Any]:
        return {**super().option, **given_of(quantize_like=self.quantize_like)}


class Resources(Group, frozen=True):
    """The memory and the tasks of a run.

    Resources:
        --max-memory SIZE: All buffers together stay below this, such as 512MiB. Default: a quarter of the memory, 1GiB at most.
        --workers N: Tasks that run at once. Default: the number of processors, at least 2 and at most 16. With more than 4, a conversion
            of 4 GiB or more uses several processes.
    """

    max_memory: Size = None
    workers: Annotated[int | None, typer.Option(min=1)] = None


class Output(Group, frozen=True):
    """The form of a command's answer.

    Options:
        --all: A row for each tensor, however many there are, with every column, however wide the screen is.
        --quiet: No progress and no report; warnings and errors are still written to stderr.
        --json: One JSON object on stdout, also for errors; keys are stable.
    """

    show_all: bool = False
    quiet: bool = False
    as_json: bool = False

    def watching(self) -> AbstractContextManager[Watcher | None]:
        """The ``progress`` callback of a run."""
        from reshard.cli.progress import watching

        return watching(self.as_json or self.quiet)

    def tell(self, command: str, record: Struct, view: str, *more: Any) -> None:
        """Prints the answer of a command: as JSON, with --quiet its warnings alone, or by a view, which also gets ``more``.

        A view is named, and loaded only here, since it takes rich.
        """
        if not self.is_told(command, record, getattr(record, "warnings", ())):
            show_view(view, record, *more)

    def is_told(self, command: str, record: Struct, warnings: Iterable[str] = ()) -> bool:
        """Prints the JSON, or with --quiet the warnings alone; false where a view is due."""
        if self.as_json:
            print_answer(command, record)
        elif self.quiet:
            warn(warnings)
        return self.as_json or self.quiet


class ByServer(Group, frozen=True):
    """The server that does the work, if one is named.

    By a server:
        --server URL: Ask this server: paths are then ROOT/path on the server. Default: the variable RESHARD_SERVER.
        --token-file FILE: A file that contains the server's token. Default: the variable RESHARD_TOKEN.
    """

    server: str | None = None
    token_file: Path | None = None

    def asked(self) -> Asked | None:
        """The server that the options or the variable name; None for none. A usage error for a token without a server."""
        url = os.environ.get(SERVER_VARIABLE) if self.server is None else self.server
        if url:
            return Asked(url, self.token_file, by_variable=self.server is None)
        if self.token_file is not None:
            raise Misuse("--token-file belongs to --server; add it, or leave it out")
        return None


class Notifying(ByServer, frozen=True):
    """The same, and the URLs that the server tells when it is done.

    By a server:
        --notify URL: Let the server tell this URL, by a signed POST, when the conversion has ended; several times for several URLs.
    """

    notify: list[str] | None = None

    def there(self) -> dict[str, Any]:
        """The URLs in the form of a request; a usage error for URLs without a server."""
        if self.notify and self.asked() is None:
            raise Misuse("--notify belongs to --server; add it, or leave --notify out")
        return given_of(notify=self.notify or None)


SHARED = (StepAndItem, Chosen, Computed, Resources, Output, ByServer)
"""Groups whose help also holds for a command that has one of their options by itself."""


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: with the fields of its groups as parameters of their own, and with the help of its docstring."""
    own = signature(command, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in own.parameters.items()
        if isinstance(each.annotation, type) and issubclass(each.annotation, Group)
    }

    @wraps(command)
    def gathered(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group.__struct_fields__))
        command(**given)

    page = page_of(command)
    texts = ChainMap(*(page_of(each).options for each in (command, *groups.values(), *SHARED)))
    arguments = iter(page.arguments)
    parameters: list[Parameter] = []
    for name, each in own.parameters.items():
        if each.kind is Parameter.VAR_KEYWORD:
            parameters.append(each)
        else:
            inner = _fields_of(groups[name]) if name in groups else [each]
            parameters += (with_help(one, texts, arguments) for one in inner)
    gathered.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it; no type declares it
    return gathered


def shown_fields(group: type[Group]) -> list[Parameter]:
    """The fields of a group as options with their help."""
    return [with_help(each, page_of(group).options, iter(())) for each in _fields_of(group)]


def _fields_of(group: type[Group]) -> list[Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in zip(group.__struct_fields__, group.__struct_defaults__, strict=True)
    ]


SERVER_VARIABLE = "RESHARD_SERVER"
TOKEN_VARIABLE = "RESHARD_TOKEN"  # noqa: S105  (the name of a variable)


class Asked(Struct, frozen=True):
    """The server that is asked.

    Attributes:
        token_file: None where a variable has the token.
        by_variable: true if a variable names the server, and no option, for a command that works on this host, too.
    """

    url: str
    token_file: Path | None = None
    by_variable: bool = False


def refuse_here(asked: Asked, given: Mapping[str, Any]) -> None:
    """A usage error for an option that only a command on this host takes."""
    for name, value in given.items():
        if value is not None:
            raise Misuse(f"{name} is of this host{lets_a_server(asked, 'leave it out')}")


def lets_a_server(asked: Asked, mend: str) -> str:
    """The rest of a sentence: a server works, and the remedy ``mend``. It blames no option that was not given."""
    if asked.by_variable:
        return f", but {SERVER_VARIABLE} lets the server {asked.url} do the work; {mend}, or let this host work (--server '')"
    return f", but --server lets a server do the work; {mend}, or leave --server out"


def is_stored_name(given: str) -> bool:
    """True if a layout or a map is no file of this host and does not look like one: then the server may store it."""
    return not (Path(given).exists() or Path(given).suffix or "/" in given)
