"""Pages that show the files of a folder, since a site of files lists none."""

from __future__ import annotations

from pathlib import Path

LANGUAGES = {".yaml": "yaml", ".toml": "toml", ".conf": "nginx", ".service": "ini", ".timer": "ini"}


def folder_pages(above: Path, root: Path) -> dict[Path, str]:
    """A page for each folder in ``above``: its files, each in full."""
    folders = sorted(f for f in above.iterdir() if f.is_dir())
    return {(folder / "index.md").relative_to(root): _page(folder, root) for folder in folders}


def _page(folder: Path, root: Path) -> str:
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    return "\n".join([f"# {folder.relative_to(root)}", "", *map(_shown, files)])


def _shown(file: Path) -> str:
    language = LANGUAGES.get(file.suffix, "text")
    return f"## {file.name}\n\n~~~{language}\n{file.read_text('utf-8').rstrip()}\n~~~\n"
