"""Every block of code in README and docs is run by a test, or says why it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.examples import DOCS, HELP
from tests.docs.page import FILE_NAME, Block, blocks, commands
from tests.docs.run_page import PAGES

ROOT = Path(__file__).parents[2]
CLUSTERS = "tests/executors/test_cluster_pages.py"
SERVICE = "tests/server/test_service_doc.py"
INIT = "tests/deploy/test_init_container.py"
RUN_BY = {
    ("docs/how-to/add-a-format.md", "console"): "tests/docs/test_add_a_format.py",
    ("docs/how-to/add-a-format.md", "python"): "tests/docs/test_add_a_format.py",
    ("docs/how-to/add-a-format.md", "toml"): "tests/docs/test_add_a_format.py",
    ("README.md", "console"): "tests/test_readme.py",
    ("README.md", "python"): "tests/test_readme.py",
    ("README.md", "yaml"): "tests/test_readme.py",
    ("docs/how-to/buckets.md", "console"): "tests/storage/buckets/test_page.py",
    ("docs/how-to/buckets.md", "toml"): "tests/storage/buckets/test_page.py",
    ("docs/how-to/check-weights-in-your-server.md", "console"): "tests/docs/test_check_weights.py",
    ("docs/how-to/check-weights-in-your-server.md", "python"): "tests/docs/test_check_weights.py",
    ("docs/how-to/hugging-face-hub.md", "console"): "tests/storage/hub/test_page.py",
    ("docs/how-to/hugging-face-hub.md", "toml"): "tests/storage/hub/test_page.py",
    ("docs/how-to/many-hosts/ray.md", "console"): CLUSTERS,
    ("docs/how-to/many-hosts/ray.md", "python"): CLUSTERS,
    ("docs/how-to/many-hosts/slurm.md", "bash"): CLUSTERS,
    ("docs/how-to/many-hosts/slurm.md", "console"): CLUSTERS,
    ("docs/how-to/many-hosts/slurm.md", "python"): CLUSTERS,
    (
        "docs/how-to/publish-weights-while-training.md",
        "console",
    ): "tests/docs/test_publish_while_training.py",
    (
        "docs/how-to/publish-weights-while-training.md",
        "python",
    ): "tests/docs/test_publish_while_training.py",
    (
        "docs/how-to/publish-weights-while-training.md",
        "yaml",
    ): "tests/docs/test_publish_while_training.py",
    ("docs/how-to/serve-from-a-training-bucket.md", "console"): INIT,
    ("docs/how-to/serve-from-a-training-bucket.md", "yaml"): INIT,
    ("docs/how-to/service/kubernetes.md", "toml"): "tests/deploy/test_engine.py",
    ("docs/tutorials/first-service.md", "console"): "tests/test_readme.py",
    ("docs/tutorials/training-to-serving.md", "console"): "tests/docs/test_training_to_serving.py",
    ("docs/tutorials/training-to-serving.md", "python"): "tests/docs/test_training_to_serving.py",
    ("docs/tutorials/training-to-serving.md", "yaml"): "tests/docs/test_training_to_serving.py",
    ("docs/reference/layout-files.md", "yaml"): "tests/test_readme.py",
    ("docs/reference/maps.md", "yaml"): "tests/maps/test_page.py",
    ("docs/how-to/service/clients.md", "python"): SERVICE,
    ("docs/how-to/service/clients.md", "sh"): SERVICE,
    ("docs/how-to/service/more-than-one-host.md", "toml"): SERVICE,
    ("docs/how-to/service/schedules.md", "json"): SERVICE,
    ("docs/how-to/service/schedules.md", "sh"): SERVICE,
    ("docs/how-to/service/tokens.md", "console"): SERVICE,
    ("docs/how-to/service/webhooks.md", "console"): SERVICE,
    ("docs/how-to/service/webhooks.md", "json"): SERVICE,
    ("docs/how-to/service/webhooks.md", "python"): SERVICE,
    ("docs/how-to/service/webhooks.md", "toml"): SERVICE,
    ("docs/reference/service/api.md", "console"): SERVICE,
    ("docs/reference/service/api.md", "json"): SERVICE,
    ("docs/reference/service/settings.md", "sh"): SERVICE,
    ("docs/reference/service/settings.md", "toml"): SERVICE,
}
"""The test that runs the blocks of a page that are in one language, where it is not the one of all how-to pages."""
FOR_THE_EYES = {"", "text"}
ALL_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def test_every_block_is_run_or_says_why_not() -> None:
    left = [
        f"{page.relative_to(ROOT)}, line {block.line}: ```{block.language} is run by no test; let one run it and name "
        "it in RUN_BY, or put <!-- not run: WHY --> above it"
        for page in ALL_PAGES
        for block in blocks(page.read_text("utf-8"))
        if not (block.not_run or block.language in FOR_THE_EYES or is_run(page, block))
    ]
    assert left == []


def is_run(page: Path, block: Block) -> bool:
    """Whether a test runs the block."""
    if page in PAGES and (block.language in ("console", "python") or FILE_NAME.match(block.text)):
        return True
    if (str(page.relative_to(ROOT)), block.language) in RUN_BY:
        return True
    typed = [step.text.replace("\\\n", "") for step in commands(block)]
    examples = {" ".join(line.split()) for line in examples_that_run(page)}
    return block.language == "console" and {" ".join(line.split()) for line in typed} <= examples


def examples_that_run(page: Path) -> Iterator[str]:
    """The commands that ``test_examples_run`` types: those of help, and those of reshard on pages of reference."""
    for lines in HELP.values():
        yield from lines
    yield from DOCS.get(page.name, [])


@pytest.mark.parametrize(("page", "language"), RUN_BY)
def test_what_runs_a_block_names_its_page(page: str, language: str) -> None:
    test = (ROOT / RUN_BY[page, language]).read_text("utf-8")
    assert f'"{Path(page).name}"' in test
    assert any(block.language == language for block in blocks((ROOT / page).read_text("utf-8")))


def test_no_fence_is_overlooked() -> None:
    for page in ALL_PAGES:
        text = page.read_text("utf-8")
        fences = sum(line.lstrip().startswith("```") for line in text.splitlines())
        assert fences == 2 * len(list(blocks(text))), page
