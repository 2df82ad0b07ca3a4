"""Names of a root that is a repository of the hub: clients name its branches below ``@``, and messages do not name the repository.

    models              hf://org/model
    models/folder       hf://org/model/folder
    models/@step-1/x    hf://org/model@step-1/x

A root with a branch or a folder has only that: ``@`` is then a character as others.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from reshard.storage.hub.address import MAIN, parse_hub


def hub_url(root: str, names: tuple[str, ...]) -> str:
    """The URL of names below the URL of a root."""
    is_revision = root == _repository(root) and "/".join(names).startswith("@")
    return root + "/".join(names) if is_revision else "/".join((root, *names))


def named_for_clients(text: str, root: str, name: str) -> str:
    """A message with the root's name in place of its URL, at its branch or at a commit; the page of the repository is left out."""
    repository, path = _repository(root), parse_hub(root).path
    commit, below = f"{re.escape(repository)}@[0-9a-f]{{40}}", re.escape(path and f"/{path}")
    page = rf" \(https?://[^\s()]*/{re.escape(repository.partition('://')[2])}\)"
    text = re.sub(page, "", text)
    if root == repository:
        text = text.replace(f"{root}@", f"{name}/@")
    return re.sub(rf"(?:{re.escape(root)}|{commit}{below})(?![\w.@-])", lambda _: name, text)


@cache
def _repository(root: str) -> str:
    return str(replace(parse_hub(root), revision=MAIN, path=""))
