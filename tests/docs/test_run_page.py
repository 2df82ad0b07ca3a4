"""The runner of pages does what a reader does, and notices where a page is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import is_as_shown, steps
from tests.docs.run_page import run_page

PAGE = """\
# A page

```console
$ mkdir made && cd made     # counts for what follows
$ export GREETING=hello
$ printf '%s\\n' \\
    "$GREETING"
hello
```

```python
# greet.py
import sys

print("hello", *sys.argv[1:])
```

```console
$ python greet.py you
hello …
$ reshard --version
…
```

```yaml
# deep/layout.yaml
mesh: {model: 8}
```

```python
import os
from pathlib import Path

here = Path.cwd().name
```

Text between.

```python
print(here, "XLA_FLAGS" in os.environ, Path("deep/layout.yaml").exists())
print("any")
```

```text
made False True
…
```

```json
{"for": "the eyes"}
```

<!-- not run: it would fail -->
```console
$ false
```
"""


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, "utf-8")
    return page


def test_a_page_is_done_in_order_in_one_shell_and_one_interpreter(tmp_path: Path) -> None:
    did = run_page(written(tmp_path, PAGE), tmp_path)
    assert [step.step.kind for step in did] == [
        "command", "command", "command", "file", "command", "command", "file", "python", "python",
    ]  # fmt: skip
    assert did[2].said == "hello\n"
    assert (tmp_path / "made" / "greet.py").read_text().startswith("# greet.py\n")


def test_lines_are_those_of_the_page() -> None:
    lines = PAGE.splitlines()
    for step in steps(PAGE):
        assert step.text.splitlines()[0] in lines[step.line - 1]


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("```console\n$ false\n```\n", r"page.md, line 2:\nfalse\nwent wrong:\nexit code 1"),
        ("```console\n$ echo no\nyes\n```\n", r"shows\nyes\n\nbut says\nno"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", r"shows\n2\n\nbut says\n1"),
        (
            "\n\n```python\n\n1 / 0\n```\n",
            r"page.md\", line 5, in <module>(.|\n)*ZeroDivisionError",
        ),
        ("```python\nimport os\nos._exit(0)\n```\n", "ended its interpreter in step 1 of 1"),
        ("```console\n$ true\n```\n```python\nimport os\nos._exit(0)\n```\n", "in step 2 of 2"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, block: str, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        run_page(written(tmp_path, block), tmp_path)


def test_commands_can_be_left_out_by_their_beginning(tmp_path: Path) -> None:
    page = written(tmp_path, "```console\n$ pip install .\n$ echo done\ndone\n```\n")
    assert [did.said for did in run_page(page, tmp_path, skip=["pip install"])] == ["done\n"]
    with pytest.raises(AssertionError, match=r"no command that begins with \['make'\]"):
        run_page(page, tmp_path, skip=["make"])


@pytest.mark.parametrize(
    ("shown", "said", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a  \n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\n", True),
        ("took … s\n", "took 3.1 s\n", True),
        ("took … s\n", "took 3.1\nand s\n", False),
        ("(.)\n", "x\n", False),
    ],
)
def test_output_is_compared(shown: str, said: str, same: bool) -> None:
    assert is_as_shown(shown, said) is same
