"""The process that forks every child: ``python -P -m reshard_server.worker.template PARENT``.

It has imported the modules of children, so a child starts in milliseconds. It has one thread, since the locks of others would stay taken in
a fork, and it reads no checkpoint and no request, so each child starts from the same clean state.

The server sends one byte for each child over the socket at stdin, with four descriptors: the child's stdin, stdout and stderr, and a pipe. To
that pipe this process writes the child's pid, and its exit code when it has ended. An ended child is reaped when the server closes the pipe,
so that its pid names no other process before.
"""

from __future__ import annotations

import errno
import gc
import os
import pkgutil
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module

import reshard
from reshard_server.worker.child import die_with_parent, run_child
from reshard_server.worker.children import DESCRIPTORS, NUMBER

_APART = ("reshard.cli", "reshard.demo")
"""Packages that no child uses."""

_NOT_OF_RESHARD = (
    "reshard_server.worker.answer",
    "reshard_server.worker.fields",
    "reshard_server.worker.convert",
    "awscrt.checksums",
    "tensorstore",
)
"""Modules that a child would import on demand. None starts a thread when it is imported."""


def main() -> int:
    """Forks until the server closes its socket; carries one request out in a fork."""
    die_with_parent(int(sys.argv[1]))
    _import_all()
    return 0 if _Forks(socket.socket(fileno=0)).serve() else run_child()


def _import_all() -> None:
    found = [module.name for module in pkgutil.walk_packages(reshard.__path__, "reshard.")]
    for name in (*found, *_NOT_OF_RESHARD):
        if not name.startswith(_APART):
            with suppress(ImportError):  # of an optional library: the child that needs it says so
                import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, all of these objects


class _Forks:
    """The children, by the pipe that reports each to the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        self._told: set[int] = set()  # pipes of children whose end was reported
        self._given_up: set[int] = set()  # children whose pipe the server closed first
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing wakes
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._ready = select.poll()
        self._ready.register(control, select.POLLIN)
        self._ready.register(self._woken, select.POLLIN)

    def serve(self) -> bool:
        """True when the server has closed its socket; False in a fork, whose stdin, stdout and stderr are the child's."""
        while True:
            for fd, _ in self._ready.poll():
                if fd == self._woken:
                    os.read(fd, 1 << 12)
                    self._tell_ends()
                elif fd in self._pids:
                    self._let_go(fd)
                else:
                    data, given, *_ = socket.recv_fds(self._control, 1, DESCRIPTORS)
                    if not data:
                        return True
                    if self._is_in_fork(given):
                        return False

    def _is_in_fork(self, given: list[int]) -> bool:
        template, news = os.getpid(), given[-1]
        try:
            pid = os.fork()
        except OSError as error:  # the limit of processes, or no memory
            os.write(given[2], f"cannot fork: {os.strerror(error.errno or errno.EAGAIN)}".encode())
            _close(given)
            return False
        if pid == 0:
            self._become_child(given, template)
            return True
        with suppress(OSError):  # it has ended
            os.setpgid(pid, pid)  # before the server gets the pid: it ends the child by its group
        _close(given[:-1])
        self._pids[news] = pid
        self._ready.register(news, 0)  # poll reports an error without being asked for it
        _tell(news, pid)
        return False

    def _become_child(self, given: list[int], template: int) -> None:
        die_with_parent(template)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.detach()  # the descriptor becomes the child's stdin
        for number, fd in enumerate(given[:-1]):
            os.dup2(fd, number)
        _close([*given, *self._pids, self._woken, self._waker])

    def _tell_ends(self) -> None:
        for news in self._pids.keys() - self._told:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if (end := os.waitid(os.P_PID, self._pids[news], how)) is not None:
                self._told.add(news)
                is_exit = end.si_code == os.CLD_EXITED
                _tell(news, end.si_status if is_exit else -end.si_status)
        self._reap()

    def _let_go(self, news: int) -> None:
        """Forgets a child when the server has closed its pipe; the child may hang in the kernel still."""
        self._ready.unregister(news)
        os.close(news)
        self._told.discard(news)
        self._given_up.add(self._pids.pop(news))
        self._reap()

    def _reap(self) -> None:
        self._given_up -= {pid for pid in self._given_up if os.waitpid(pid, os.WNOHANG)[0]}


def _tell(news: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the server no longer listens
        os.write(news, NUMBER.pack(number))


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
