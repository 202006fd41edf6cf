"""Tasks in processes of their own: errors come back, progress is told, nobody is left behind."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvcache.errors import (
    InternalError,
    InvalidArgumentError,
    KVCacheError,
    OutOfCapacityError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

__all__ = ["run_tasks"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_TELL_SECONDS = 0.1  # between two reports of progress
_END_SECONDS = 2.0  # for a process that was told to end


def run_tasks(
    work: Callable[[Any, Any, Callable[[int], None]], _Result],
    shared: Any,
    tasks: Sequence[_Task],
    *,
    processes: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[_Result]:
    """Run ``work(shared, task, tell)`` for each task and return the results in order.

    Processes end with this call, however it ends, and a process whose parent is gone ends at its
    next report.

    Args:
        work: a function of a module; it may call ``tell`` with how far it is.
        shared: sent to each process once.
        tasks: sent one at a time.
        processes: at once.
        on_progress: told the number of a task and what it told.

    Raises:
        InvalidArgumentError: fewer than one process.
        KVCacheError: what a task raised.
        OutOfCapacityError: the system does not give so many processes.
        InternalError: a process died, or a task raised anything else.
    """
    if processes < 1:
        raise InvalidArgumentError(f"processes: expected at least 1, got {processes}")
    if not tasks:
        return []
    pool: _Pool[_Task, _Result] = _Pool(work, shared, min(processes, len(tasks)))
    try:
        return pool.run(tasks, on_progress)
    finally:
        pool.end()


class _Pool(Generic[_Task, _Result]):
    def __init__(self, work: Callable[..., _Result], shared: Any, processes: int) -> None:
        import multiprocessing  # only here, for it takes long
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # its start lets interrupts through again
        # Not fork(): threads of this process may hold locks.
        context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, BaseProcess] = {}
        try:
            with _interrupts_held():  # a child inherits it, so that Ctrl-C is the parent's alone
                for _ in range(processes):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
                    process.start()
                    theirs.close()
                    self._workers[ours] = process
            for connection in self._workers:
                self._send(connection, shared)
        except OSError as error:
            self.end()
            raise OutOfCapacityError(
                f"cannot start {processes} processes: {error.strerror or error}; choose fewer "
                "--processes"
            ) from None
        except BaseException:
            self.end()
            raise

    def run(
        self, tasks: Sequence[_Task], on_progress: Callable[[int, int], None] | None
    ) -> list[_Result]:
        from multiprocessing.connection import wait

        waiting = list(enumerate(tasks))[::-1]
        results: dict[int, _Result] = {}
        for worker in self._workers:
            self._send(worker, waiting.pop())
        while len(results) < len(tasks):
            for ready in wait(list(self._workers)):
                connection: Any = ready
                number, kind, value = self._receive(connection)
                if kind == "error":
                    raise value
                if kind == "told":
                    if on_progress is not None:
                        on_progress(number, value)
                    continue
                results[number] = value
                if waiting:
                    self._send(connection, waiting.pop())
        return [results[number] for number in range(len(tasks))]

    def _send(self, connection: Any, message: Any) -> None:
        try:
            connection.send(message)
        except OSError:
            raise self._died(connection) from None

    def _receive(self, connection: Any) -> tuple[int, str, Any]:
        try:
            message: tuple[int, str, Any] = connection.recv()
        except (EOFError, OSError):
            raise self._died(connection) from None
        return message

    def _died(self, connection: Connection) -> InternalError:
        process = self._workers[connection]
        process.join(_END_SECONDS)
        return InternalError(
            f"a process of the replay died (exit code {process.exitcode}); it may have been killed "
            "for its memory: choose a smaller --memory or fewer --processes"
        )

    def end(self) -> None:
        for connection, process in self._workers.items():
            connection.close()
            process.terminate()
        for process in self._workers.values():
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _ParentGoneError(Exception):
    """Nobody listens to this process any more."""


def _serve(connection: Connection, work: Callable[..., Any]) -> None:
    """A process: tasks in, results out, until the other end closes."""
    try:
        shared = _received(connection)
        while True:
            number, task = _received(connection)
            try:
                result = work(shared, task, _teller(connection, number))
                _tell(connection, (number, "done", result))
            except KVCacheError as error:
                _tell(connection, (number, "error", error))
            except _ParentGoneError:
                raise
            except Exception as error:  # whatever it is, the parent shall know
                text = f"a replay failed: {type(error).__name__}: {error}"
                _tell(connection, (number, "error", InternalError(text)))
    except _ParentGoneError:
        return


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        raise _ParentGoneError from None


def _tell(connection: Connection, message: Any) -> None:
    try:
        connection.send(message)
    except OSError:
        raise _ParentGoneError from None


def _teller(connection: Connection, number: int) -> Callable[[int], None]:
    due = 0.0

    def tell(progress: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _TELL_SECONDS
            _tell(connection, (number, "told", progress))

    return tell
