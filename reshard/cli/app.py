"""Puts the command line together: its commands, and the end of a run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
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
from reshard.cli.help_text import page_of
from reshard.cli.options import completed
from reshard.errors import ReshardError
from reshard.version import __version__

COMMANDS = {
    "inspect": "inspection", "steps": "inspection", "layout": "inspection", "plan": "conversion", "convert": "conversion", "view": "view",
    "delta": "deltas", "apply": "deltas", "merge": "merging", "rules": "rules", "recipes": "rules",
    "part": "targets", "commit": "targets", "verify": "verification", "diff": "verification",
    "fingerprint": "verification", "identify": "identity", "sign": "identity", "doctor": "targets", "clean": "targets", "serve": "serve",
    "work": "serve", "jobs": "jobs", "demo": "demo",
}  # fmt: skip
"""The commands, in the order of the help, each with its module of ``reshard.cli.commands``.

The module has a function with the name of the command, whose docstring is its help. Of a group it also has the subcommands
(``JOBS_COMMANDS``).
"""

_HELP = {"help_option_names": ["--help", "-h"]}


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The typer application with the commands of ``names``."""
    page = page_of(about)
    app = typer.Typer(
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        epilog=page.examples,
        context_settings=_HELP,
    )
    app.callback(help=page.prose)(about)
    for name in names:
        module = import_module(f"reshard.cli.commands.{COMMANDS[name]}")
        command: Callable[..., None] = getattr(module, name)
        inner = getattr(module, f"{name.upper()}_COMMANDS", None)
        if inner is None:
            _add(app, name, command)
            continue
        page = page_of(command)
        group = typer.Typer(
            rich_markup_mode="rich", help=page.prose, epilog=page.examples, context_settings=_HELP
        )
        for each, of_group in inner.items():
            _add(group, each, of_group)
        app.add_typer(group, name=name)
    return app


def _add(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    page = page_of(command)
    added = app.command(name, help=page.prose, epilog=page.examples, context_settings=_HELP)
    added(spread(command))


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

    Examples:
        $ reshard steps ckpt
        $ reshard inspect ckpt/1000
        $ reshard plan ckpt/1000 served --layout serving.yaml
        $ reshard convert ckpt/1000 served --layout serving.yaml
        $ reshard verify ckpt/1000 served
        $ reshard diff ckpt/1000 ckpt/2000
        $ reshard view ckpt/1000 --map to_hf.yaml
        $ reshard fingerprint ckpt/1000
        $ reshard jobs list --server http://checkpoints:8080
    """


def _needed(args: Sequence[str]) -> Iterable[str]:
    """The command to run, or all of them: making all would add 30 ms to each start."""
    return args[:1] if args and args[0] in COMMANDS else COMMANDS


def run(args: Sequence[str]) -> int:
    """Runs the command line once; returns its exit code."""
    command = typer.main.get_command(make_app(_needed(args)))

    def act() -> int | None:
        words = completed(args)
        asked = words if words not in ([], ["jobs"], ["rules"]) else [*words, "--help"]
        code: int | None = command.main(asked, prog_name="reshard", standalone_mode=False)
        return code

    return ended(act, "--json" in args)


def ended(act: Callable[[], int | None], as_json: bool) -> int:
    """The exit code of an action; its error is printed."""
    try:
        code = act()
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


def main(act: Callable[[Sequence[str]], int] = run) -> None:
    """The entry point of the command ``reshard``."""
    out = open_streams()
    # Nothing here multiplies matrices; numpy's threads for that would only wait and use processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # huggingface_hub has bars of its own, and would warn that it sends no file on a disk by HTTP.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    stop_on_signals()
    code = act(sys.argv[1:])
    sys.stdout.flush()
    if out.failure is not None:
        code = code or refused(out.failure, as_json=False)
    # At its exit the interpreter would search all objects for cycles once more.
    gc.freeze()
    sys.exit(code)
