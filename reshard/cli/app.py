"""Puts the command line together: its commands, and the end of a run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import getdoc
from typing import Annotated

import typer

from reshard.cli.console import open_streams
from reshard.cli.failures import (
    INTERRUPTED,
    Detached,
    Stopped,
    detached,
    interrupted,
    misused,
    refused,
    stop_on_signals,
    stopped,
)
from reshard.cli.groups import spread
from reshard.cli.options import completed, examples
from reshard.errors import ReshardError
from reshard.version import __version__

COMMANDS = {
    "inspect": "inspection", "steps": "inspection", "layout": "inspection", "plan": "conversion", "convert": "conversion", "delta": "deltas",
    "apply": "deltas", "rules": "rules", "recipes": "rules", "commit": "targets", "verify": "verification", "diff": "verification",
    "fingerprint": "verification", "identify": "identity", "sign": "identity", "doctor": "targets", "clean": "targets", "serve": "serve",
    "jobs": "jobs", "demo": "demo",
}  # fmt: skip
"""The commands, in the order of the help, each with its module of ``reshard.cli.commands``.

The module has a function with the name of the command, and the command's examples (``DIFF_EXAMPLES``). Of a group it also has the
subcommands (``JOBS_COMMANDS``).
"""

_HELP = {"help_option_names": ["--help", "-h"]}

_EPILOG = examples(
    "reshard steps ckpt",
    "reshard inspect ckpt/1000",
    "reshard plan ckpt/1000 served --layout serving.yaml",
    "reshard convert ckpt/1000 served --layout serving.yaml",
    "reshard verify ckpt/1000 served",
    "reshard diff ckpt/1000 ckpt/2000",
    "reshard fingerprint ckpt/1000",
    "reshard jobs list --server http://checkpoints:8080",
)


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The typer application with the commands of ``names``."""
    app = typer.Typer(
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        epilog=_EPILOG,
        context_settings=_HELP,
    )
    app.callback(help=_prose(about))(about)
    for name in names:
        module = import_module(f"reshard.cli.commands.{COMMANDS[name]}")
        command: Callable[..., None] = getattr(module, name)
        shown: str = getattr(module, f"{name.upper()}_EXAMPLES")
        subcommands = getattr(module, f"{name.upper()}_COMMANDS", None)
        if subcommands is not None:
            app.add_typer(_group(command, shown, subcommands), name=name)
        else:
            _add(app, name, command, shown)
    return app


def _add(app: typer.Typer, name: str, command: Callable[..., None], epilog: str) -> None:
    app.command(name, help=_prose(command), epilog=epilog, context_settings=_HELP)(spread(command))


def _group(
    about_it: Callable[..., None],
    epilog: str,
    commands: Mapping[str, tuple[Callable[..., None], str]],
) -> typer.Typer:
    """The application of a command that has commands of its own."""
    group = typer.Typer(
        rich_markup_mode="rich", help=_prose(about_it), epilog=epilog, context_settings=_HELP
    )
    for name, (command, shown) in commands.items():
        _add(group, name, command, shown)
    return group


def _prose(command: Callable[..., None]) -> str:
    """A docstring with each paragraph on one line, so that help is as wide as the terminal."""
    paragraphs = (getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(p.split()) for p in paragraphs)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"reshard {__version__}")
        raise typer.Exit


def about(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Converts sharded checkpoints from one device mesh to another.

    Needs neither mesh's devices, stays within the memory you allow, and publishes a target only if
    the written bytes have the same digest as the read bytes, for every tensor (see reshard convert --help, --verify).
    Exit codes: 0 done, 1 refused or failed, 2 usage, 3 a difference was found, 130 and 143 stopped by Ctrl-C and
    SIGTERM.
    """


def _needed(args: Sequence[str]) -> Iterable[str]:
    """The command to run, or all of them: making all would add 30 ms to each start."""
    return args[:1] if args and args[0] in COMMANDS else COMMANDS


def run(args: Sequence[str]) -> int:
    """Runs the command line once; returns its exit code."""
    as_json = "--json" in args
    command = typer.main.get_command(make_app(_needed(args)))
    try:
        words = completed(args)
        asked = words if words not in ([], ["jobs"], ["rules"]) else [*words, "--help"]
        code = command.main(asked, prog_name="reshard", standalone_mode=False)
    except ReshardError as error:
        return refused(error, as_json)
    except typer.TyperException as error:
        return misused(error, as_json)
    except KeyboardInterrupt as error:
        return interrupted(error, as_json)
    except Stopped as stop:
        return stopped(stop, as_json)
    except Detached as left:
        return detached(left, as_json)
    return interrupted(KeyboardInterrupt(), as_json) if code == INTERRUPTED else code or 0


def main() -> None:
    """The entry point of the command ``reshard``."""
    out = open_streams()
    # Nothing here multiplies matrices; numpy's threads for that would only wait and use processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stop_on_signals()
    code = run(sys.argv[1:])
    sys.stdout.flush()
    if out.failure is not None:
        code = code or refused(out.failure, as_json=False)
    # At its exit the interpreter would search all objects for cycles once more.
    gc.freeze()
    sys.exit(code)
