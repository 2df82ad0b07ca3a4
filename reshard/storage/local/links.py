"""Symbolic links in a checkpoint: followed if they stay in its folder, refused if they lead out.

A checkpoint from strangers may have a link to any file of this machine; read as a chunk, that file
would end up in the output.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from reshard.errors import FormatError
from reshard.storage.local.files import storage_error

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


class Inside:
    """A folder whose links must stay inside; the folder itself may be reached by any link.

    Args:
        root: the folder.
        also: real paths of other folders into which links may lead.

    Checked folders are remembered, so that a file costs one ``lstat``. Safe from any thread, since a second check
    is harmless.
    """

    def __init__(self, root: str | Path, also: Iterable[str] = ()) -> None:
        self._root = str(root)
        self._real = os.path.realpath(self._root)
        self._allowed = tuple(f"{folder}/" for folder in (self._real, *also))
        self._sound = {self._root}

    def status(self, path: str, what: str) -> os.stat_result:
        """The status of a path below the folder, links followed; FormatError, naming ``what``, if it leads out."""
        folder = path[: path.rfind("/")]
        if folder not in self._sound:
            self._check_folder(folder, what)
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return status
        self._check_link(path, what)
        return os.stat(path)  # noqa: PTH116 - as above, without a Path

    def check(self, path: str | Path, what: str) -> None:
        """Raises FormatError as ``status`` does, and StorageError if the system refuses; a missing path is fine."""
        try:
            self.status(str(path), what)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error("look at", path, error, what) from error

    def _check_folder(self, folder: str, what: str) -> None:
        above = []
        while folder not in self._sound and folder.startswith(self._root):
            above.append(folder)
            folder = folder[: folder.rfind("/")]
        for path in reversed(above):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                self._check_link(path, what)
            self._sound.add(path)

    def _check_link(self, path: str, what: str) -> None:
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._allowed):
            # The message leaves out the link's target: the server shows it to clients.
            begin = f"{what}: " if what else ""
            raise FormatError(
                f"{begin}{path} is a symbolic link to a place outside of {self._root}; links that lead out of a "
                "checkpoint are not followed, so replace it by the file that it points to"
            )


def blobs_of_snapshot(folder: str) -> tuple[str, ...]:
    """The folder of the blobs if ``folder`` is a snapshot in the cache of huggingface_hub; else nothing.

    Every file of a snapshot is a link to a blob of its repository:
    ``models--ORG--NAME/snapshots/REVISION/FILE`` leads to ``../../blobs/HASH``.
    """
    snapshots = Path(os.path.realpath(folder)).parent
    if snapshots.name == "snapshots" and _REPOSITORY.fullmatch(snapshots.parent.name):
        return (f"{snapshots.parent}/blobs",)
    return ()
