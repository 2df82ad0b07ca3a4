"""One chunk on its way: decoded band by band, cut at the edges of the target's chunks, written in place."""

from __future__ import annotations

from collections.abc import Iterator

from docs.pictures.svg import DEVICES, arrow, box, line, picture, text

TOP, HEIGHT, BANDS, NOW = 64, 160, 4, 1
"""The upper edge of all chunks, the height of the source's; its bands, and the one on its way (from 0)."""
SOURCE_X, SOURCE_WIDTH = 14, 150
BAND_X, BAND_WIDTH = 276, 216
TARGET_X, TARGET_WIDTH, TARGET_GAP, TARGETS, TARGET_HEIGHT = 604, 46, 8, 4, 244
SOURCE, PIECES = DEVICES[0], (DEVICES[4], DEVICES[2], DEVICES[6], DEVICES[5])
BAND = HEIGHT / BANDS


def source() -> Iterator[str]:
    """A chunk of the source, cut into bands: those done, the one on its way, those to come."""
    for band in range(BANDS):
        y = TOP + band * BAND
        opacity = 0.3 if band < NOW else 1 if band == NOW else 0
        place = (SOURCE_X, y + 1, SOURCE_WIDTH, BAND - 2)
        yield (
            box(*place, fill=SOURCE, opacity=opacity)
            if opacity
            else box(*place, kind="faint", dashed=True)
        )
    yield text(SOURCE_X + SOURCE_WIDTH / 2, TOP + (NOW + 0.5) * BAND + 5, "band, 4 MiB", "on")


def band() -> Iterator[str]:
    """The band in memory, cut into a piece for each chunk of the target."""
    y, width = TOP + (NOW + 0.5) * BAND - 22, BAND_WIDTH / TARGETS
    for piece, colour in enumerate(PIECES):
        yield box(BAND_X + piece * width + 1, y, width - 2, 44, fill=colour)


def target() -> Iterator[str]:
    """The chunks of the target, with what is written, what is being written, and what is missing."""
    for chunk, colour in enumerate(PIECES):
        x = TARGET_X + chunk * (TARGET_WIDTH + TARGET_GAP)
        yield box(x, TOP, TARGET_WIDTH, TARGET_HEIGHT, kind="faint", dashed=True)
        yield box(x, TOP + 1, TARGET_WIDTH, NOW * BAND - 2, fill=colour, opacity=0.3)
        yield box(x, TOP + NOW * BAND + 1, TARGET_WIDTH, BAND - 2, fill=colour)


def proof(y: float) -> Iterator[str]:
    """The two digests, and what they decide."""
    chip, middle = 204, BAND_X + BAND_WIDTH / 2
    read_x, written_x = (
        SOURCE_X,
        TARGET_X + 2 * (TARGET_WIDTH + TARGET_GAP) - TARGET_GAP / 2 - chip / 2,
    )
    for x, words in ((read_x, "digest of what is read"), (written_x, "digest of what is written")):
        yield box(x, y, chip, 34, kind="card", radius=17)
        yield text(x + chip / 2, y + 22, words)
    yield box(middle - 124, y - 8, 248, 50, kind="card", radius=6)
    yield text(middle, y + 13, "equal for every tensor?", "name")
    yield text(middle, y + 32, "then one rename publishes the target", "small")
    yield arrow(read_x + chip + 8, y + 17, middle - 132, y + 17, 2)
    yield line(f"M{written_x - 8:g} {y + 17:g} L{middle + 132:g} {y + 17:g} m8 -6 l-8 6 l8 6")


def drawing() -> str:
    """The whole picture."""
    centre, bottom = TOP + (NOW + 0.5) * BAND, TOP + TARGET_HEIGHT + 46
    targets = TARGETS * (TARGET_WIDTH + TARGET_GAP) - TARGET_GAP
    band_middle, target_middle = BAND_X + BAND_WIDTH / 2, TARGET_X + targets / 2
    words = (
        text(SOURCE_X + SOURCE_WIDTH / 2, 20, "a chunk of the source", "name"),
        text(SOURCE_X + SOURCE_WIDTH / 2, 40, "encoded, on disk", "quiet"),
        text(band_middle, 20, "one band in memory", "name"),
        text(band_middle, 40, "whatever the size of the model", "quiet"),
        text(target_middle, 20, "chunks of the target", "name"),
        text(target_middle, 40, "in a hidden folder beside DST", "quiet"),
        arrow(SOURCE_X + SOURCE_WIDTH + 14, centre, BAND_X - 14, centre),
        text((SOURCE_X + SOURCE_WIDTH + BAND_X) / 2, centre - 12, "decode", "code"),
        text(band_middle, centre + 46, "cut at the target's edges", "small quiet"),
        arrow(BAND_X + BAND_WIDTH + 14, centre, TARGET_X - 14, centre),
        text((BAND_X + BAND_WIDTH + TARGET_X) / 2, centre - 12, "write", "code"),
        line(
            f"M{SOURCE_X + SOURCE_WIDTH / 2:g} {TOP + HEIGHT + 10:g} V{bottom - 8:g}",
            "faint",
            dashed=True,
        ),
        line(
            f"M{target_middle:g} {TOP + TARGET_HEIGHT + 8:g} V{bottom - 8:g}", "faint", dashed=True
        ),
        box(target_middle - 74, TOP + HEIGHT + 18, 148, 44, kind="card"),
        text(target_middle, TOP + HEIGHT + 37, "the rest comes from", "small quiet"),
        text(target_middle, TOP + HEIGHT + 53, "other source chunks", "small quiet"),
    )
    parts = (*source(), *band(), *target(), *words, *proof(bottom))
    says = (
        "A chunk of the source is decoded band by band; each band is cut at the edges of the target's chunks and "
        "written in place; the target is published if the digests of what was read and written are equal"
    )
    return picture(TARGET_X + targets + 20, bottom + 52, says, parts)
