"""Answering: what the library says about checkpoints, as ``docs/reference/json-output.md`` describes it.

Runs in the child process: a hostile checkpoint brings down no more than that, and one who asks no
longer can be left without an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reshard
from reshard.cli.json_output import (
    conversion_plan,
    conversion_plans,
    fingerprint,
    inspection,
    layout_document,
    plain,
    verification,
)
from reshard_server.worker.plan_picture import picture
from reshard_server.worker.summaries import contents, layout_summary
from reshard_server.worker.throttle import Pace

Document = dict[str, Any]


def answer(question: str, arguments: Document, pace: Pace) -> Document:
    """The answer to a question, which is named as its command."""
    found: Document = plain(_ANSWERS[question](dict(arguments), pace))
    return found


def _inspect(arguments: Document, _: Pace) -> Document:
    return inspection(reshard.inspect(**arguments))


def _verify(arguments: Document, pace: Pace) -> Document:
    return verification(reshard.verify(**arguments, progress=pace))


def _fingerprint(arguments: Document, pace: Pace) -> Document:
    return fingerprint(reshard.fingerprint(**arguments, progress=pace))


def _layout(arguments: Document, _: Pace) -> Document:
    return layout_document("", arguments["source"], reshard.preview_layout(**arguments))


def _plan(arguments: Document, _: Pace) -> Document:
    shares = arguments.pop("shares")
    return conversion_plan(reshard.plan(**arguments), with_shares=shares)


def _plans(arguments: Document, _: Pace) -> Document:
    shares = arguments.pop("shares")
    targets = [reshard.Target(**target) for target in arguments.pop("targets")]
    return conversion_plans(
        reshard.plan_all(arguments.pop("source"), targets, **arguments), with_shares=shares
    )


def _picture(arguments: Document, _: Pace) -> Document:
    shown = arguments.pop("tensor")
    return picture(reshard.plan(**arguments), shown)


def _contents(arguments: Document, _: Pace) -> Document:
    return contents(reshard.inspect(**arguments))


def _layout_summary(arguments: Document, _: Pace) -> Document:
    return layout_summary(arguments["source"], reshard.preview_layout(**arguments))


_ANSWERS: dict[str, Callable[[Document, Pace], Document]] = {
    "inspect": _inspect,
    "verify": _verify,
    "fingerprint": _fingerprint,
    "layout": _layout,
    "plan": _plan,
    "plans": _plans,
    "picture": _picture,
    "contents": _contents,
    "layout_summary": _layout_summary,
}
