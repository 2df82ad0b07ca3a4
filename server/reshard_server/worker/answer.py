"""Answers questions about checkpoints with the documents that ``docs/reference/json-output.md`` describes.

Runs in the child process: a hostile checkpoint can crash only the child, and the child can be ended when no client
waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

import reshard
from reshard.answers.record import answer_of, plain
from reshard.conversion.plan import P, priced
from reshard.errors import MissingError
from reshard.identity.envelope import NoSignatureError
from reshard.inspection.checkpoint_info import recorded_identity
from reshard_server.worker.plan_picture import MOST_TENSORS, picture
from reshard_server.worker.throttle import ProgressThrottle

Document = dict[str, Any]


def answer(question: str, arguments: Document, progress: ProgressThrottle) -> Document:
    """The answer to a question, which has the name of the command that it runs."""
    return _ANSWERS[question](dict(arguments), progress)


def _inspect(arguments: Document, _: ProgressThrottle) -> Document:
    return answer_of("inspect", reshard.inspect(**arguments))


def _versions(arguments: Document, _: ProgressThrottle) -> Document:
    versions = plain(reshard.inspect_versions(**arguments))
    return answer_of("inspect", uri=arguments["path"], versions=versions)


def _verify(arguments: Document, progress: ProgressThrottle) -> Document:
    try:
        return answer_of("verify", reshard.verify(**arguments, progress=progress))
    except NoSignatureError as error:  # a client can name no other folder
        raise MissingError(
            f"{error.problem}; sign the checkpoint (reshard sign), or convert a signed one with identity carry, so that the signature "
            "travels"
        ) from None


def _fingerprint(arguments: Document, progress: ProgressThrottle) -> Document:
    return answer_of("fingerprint", reshard.fingerprint(**arguments, progress=progress))


def _identify(arguments: Document, progress: ProgressThrottle) -> Document:
    return answer_of("identify", reshard.identify(**arguments, progress=progress))


def _starter(arguments: Document, _: ProgressThrottle) -> Document:
    starter = reshard.starter_layout(**arguments)
    return answer_of("layout", source=arguments["source"], starter=starter)


def _layout(arguments: Document, _: ProgressThrottle) -> Document:
    preview = reshard.preview_layout(**arguments)
    return answer_of("layout", replace(preview, file="", source=arguments["source"]))


def _plan(arguments: Document, _: ProgressThrottle) -> Document:
    shares, link = arguments.pop("shares"), arguments.pop("link")
    return answer_of("plan", _as_asked(reshard.plan(**arguments), shares, link))


def _plans(arguments: Document, _: ProgressThrottle) -> Document:
    shares, link = arguments.pop("shares"), arguments.pop("link")
    targets = [reshard.Target(**target) for target in arguments.pop("targets")]
    planned = reshard.plan_all(arguments.pop("source"), targets, **arguments)
    return answer_of("plan", _as_asked(planned, shares, link))


def _as_asked(planned: P, shares: bool, link: dict[str, float]) -> P:
    """The plan, with shares if they were asked for, and with its requests on the link."""
    found = planned.with_shares() if shares else planned
    return priced(found, found.request_plan, **link) if link else found


def _picture(arguments: Document, _: ProgressThrottle) -> Document:
    shown = arguments.pop("tensor")
    return picture(reshard.plan(**arguments), shown)


def _contents(arguments: Document, _: ProgressThrottle) -> Document:
    """A checkpoint's contents for a page: the first tensors only."""
    whole = _inspect(arguments, _)
    kept = ("format", "style", "nbytes", "items", "meshes", "warnings")
    return {
        "command": "contents",
        **{name: whole[name] for name in kept},
        "tensors": whole["tensors"][:MOST_TENSORS],
        "count": len(whole["tensors"]),
        "identity": recorded_identity(arguments["path"]),
    }


def _layout_summary(arguments: Document, _: ProgressThrottle) -> Document:
    """A layout on a checkpoint for a page: the first tensors only."""
    whole = _layout(arguments, _)
    return {
        **whole,
        "command": "layout_summary",
        "tensors": whole["tensors"][:MOST_TENSORS],
        "count": len(whole["tensors"]),
    }


_ANSWERS: dict[str, Callable[[Document, ProgressThrottle], Document]] = {
    "inspect": _inspect,
    "versions": _versions,
    "verify": _verify,
    "fingerprint": _fingerprint,
    "identify": _identify,
    "layout": _layout,
    "starter": _starter,
    "plan": _plan,
    "plans": _plans,
    "picture": _picture,
    "contents": _contents,
    "layout_summary": _layout_summary,
}
