"""Every command that reads a checkpoint, run on a hostile one, and the checks of its answer."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import reshard
from reshard.errors import ReshardError
from reshard.verification.reports import TensorVerdict

LONGEST_MESSAGE = 20_000
"""Characters of an error: names in it are shortened, lists are cut."""

_STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
OPTIONS: tuple[dict[str, object], ...] = (
    {}, {"mesh": "data=2,model=4"}, {"compression": "zstd"}, {"compression": "keep"}, {"ocdbt": True},
    {"max_memory": "64MiB"}, {"check": "readback"}, {"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["m"]}]}},
)  # fmt: skip


@dataclass
class Seen:
    """What each operation ended with, and what went wrong.

    Attributes:
        outcomes: operation → ``"ok"`` or the error's class.
        wrong: tracebacks of foreign errors, differences, and text that steers a terminal.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def operate(src: Path, dst: Path, seed: int) -> Seen:
    """Inspect, plan, lay out, verify, diff, convert and restore, by the API and by the command line."""
    seen, options = Seen(), OPTIONS[seed % len(OPTIONS)]
    with _judged(seen, "inspect"):
        reshard.inspect(src)
    if seen.outcomes["inspect"] != "ok":  # the others open it just so
        _judge_rest(seen, src, dst)
        _run_some_command(seen, src, dst, seed)
        return seen
    with _judged(seen, "plan"):
        reshard.plan(src, dst, **_without_check(options))
    with _judged(seen, "layout"):
        reshard.preview_layout(src, {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []})
    with _judged(seen, "verify"):
        reshard.verify(src)
    with _judged(seen, "diff"):
        if (found := reshard.diff(src, src)).differences:
            seen.wrong.append(f"it differs from itself: {found}")
    with _judged(seen, "convert"):
        report = reshard.convert(src, dst, **options)
        check_equal(seen, src, dst, {t.target for t in report.tensors if t.proof == "encoded"})
    with _judged(seen, "restore"):
        reshard.restore(src)
    _run_some_command(seen, src, dst, seed)
    return seen


def _judge_rest(seen: Seen, src: Path, dst: Path) -> None:
    with _judged(seen, "convert"):
        reshard.convert(src, dst)
    with _judged(seen, "restore"):
        reshard.restore(src)


def _run_some_command(seen: Seen, src: Path, dst: Path, seed: int) -> None:
    """The command line takes longer than all else, so that each case meets it once or not at all."""
    commands = (
        ["inspect", str(src)],
        ["plan", str(src), str(dst.parent / "other")],
        ["verify", str(src)],
        ["diff", str(src), str(src)],
    )
    if seed % 8 < len(commands):
        _run_command(seen, commands[seed % 8])


def _without_check(options: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in options.items() if k != "check"}


def check_equal(seen: Seen, src: Path, dst: Path, unseen: Collection[str]) -> None:
    """Whether the target holds what the source does; ``unseen`` are tensors whose chunks travelled encoded, so that nobody looked into them."""
    found = reshard.verify(src, dst)
    recorded = {name: tensor.digest for name, tensor in reshard.inspect(src).tensors.items()}
    differing = [
        v
        for v in found.tensors
        if v.is_difference
        and not (v.name in unseen and _is_on_both(v))
        and not _is_of_copy(v)
        and not _is_of_checksum(v, recorded.get(v.name))
    ]
    # Damage to bytes of the source that nothing refers to is told, and leaves the target right.
    if found.damage or differing:
        seen.wrong.append(f"the target differs: {found}")


def _is_on_both(verdict: TensorVerdict) -> bool:
    """The damage travelled along: neither side's tensor can be decoded."""
    return verdict.status == "damaged" and verdict.digest_a is None and verdict.digest_b is None


def _is_of_checksum(verdict: TensorVerdict, recorded: str | None) -> bool:
    """A checksum of the source is damaged, but not what has it: the target has the digest that was recorded of the source."""
    is_of_source = (
        verdict.detail.startswith("A: ") and "the CRC32C that was recorded" in verdict.detail
    )
    return is_of_source and recorded is not None and verdict.digest_b == recorded


def _is_of_copy(verdict: TensorVerdict) -> bool:
    """A copy of a slice that no reader takes is damaged in the source."""
    return verdict.detail.startswith("A: ") and "both should hold the same slice" in verdict.detail


@contextlib.contextmanager
def _judged(seen: Seen, what: str) -> Iterator[None]:
    seen.outcomes[what] = "ok"
    try:
        yield
    except ReshardError as error:
        seen.outcomes[what] = type(error).__name__
        if len(str(error)) > LONGEST_MESSAGE:
            seen.wrong.append(
                f"{what}: a message of {len(str(error))} characters: {str(error)[:200]}"
            )
    except Exception:  # noqa: BLE001 - this is what is looked for
        seen.outcomes[what] = "foreign"
        seen.wrong.append(f"{what}: {traceback.format_exc()}")


def _run_command(seen: Seen, args: list[str]) -> None:
    from reshard.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    with (
        _judged(seen, f"command {args[0]}"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(args)
        seen.outcomes[f"command {args[0]}"] = f"exit {code}"
        if code not in ((0, 1, 3) if args[0] in ("verify", "diff") else (0, 1)):
            seen.wrong.append(f"{args[0]}: exit {code}: {err.getvalue()[:1000]}")
    for text in (out.getvalue(), err.getvalue()):
        if (match := _STEERING.search(text)) is not None:
            seen.wrong.append(
                f"{args[0]} prints {match[0]!a}: {text[max(0, match.start() - 80) :][:200]!a}"
            )


Operate = Callable[[Path, Path, int], Seen]
