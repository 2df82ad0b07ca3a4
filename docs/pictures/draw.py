"""Draws the pictures that are made of code: ``python -m docs.pictures.draw``, from the repository's root."""

from __future__ import annotations

from pathlib import Path

from docs.pictures import conversion, house, meshes

PICTURES = {
    "reshard.svg": meshes.drawing,
    "conversion.svg": conversion.drawing,
    "house.svg": house.library,
    "service.svg": house.service,
}

if __name__ == "__main__":
    for name, drawing in PICTURES.items():
        Path(__file__).with_name(name).write_text(drawing(), encoding="utf-8")
