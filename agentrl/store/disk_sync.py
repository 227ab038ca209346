"""Syncs to the disk: one thread that syncs, for all who wait."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

from agentrl.runtime.atomic_files import sync_path
from agentrl.store.errors import StoreError

Durable = Literal["process", "interval", "power"]
"""Events that cannot lose a completed turn, and the cost of each guarantee:

- `process`: the end of this process, however it ends. A power failure or a crash of the machine can
  lose what was recorded since the last checkpoint, or since the last `EVERY_WRITES` writes.
- `interval`: as `process`; a power failure loses at most what is younger than `interval_s`.
- `power`: nothing once `wait_settled` has answered. Everybody who waits shares one sync.
"""

EVERY_WRITES = 2000
"""Most writes without a sync, which also bounds the ledger's own log."""


class DiskSyncer:
    """Syncs files that were written, in a thread of its own."""

    def __init__(self, *, linger_s: float | None, after: Callable[[], None]) -> None:
        """With `linger_s`, whatever is noted is synced after that long; None waits to be asked.

        `after` is called in the thread after a sync of `EVERY_WRITES` writes or more, and at the
        end.
        """
        self._linger_s = linger_s
        self._after = after
        self._paths: set[Path] = set()
        self._noted = 0
        self._synced = 0
        self._finished_at = 0
        self._waiting: list[tuple[int, Future[None]]] = []
        self._error: StoreError | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="agentrl-store-sync", daemon=True)
        self._thread.start()

    def note(self, path: Path) -> None:
        """Remember a file or folder that was written."""
        with self._changed:
            self._paths.add(path)
            self._noted += 1
            if self._is_due():
                self._changed.notify()

    def check(self) -> None:
        """Raise `StoreError` after a failed sync: nothing should be written any more."""
        if self._error is not None:
            raise self._error

    def wait_settled(self) -> Future[None]:
        """Return a future of the moment when everything noted so far is on the disk.

        It cannot be cancelled: who stops waiting for it leaves the sync as it is.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._error is not None:
                future.set_exception(self._error)
            elif self._synced == self._noted:
                future.set_result(None)
            else:
                self._waiting.append((self._noted, future))
                self._changed.notify()
        return future

    def close(self) -> None:
        """Sync what is left and end the thread. Idempotent; raises `StoreError` if that failed."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self.check()

    def _is_due(self) -> bool:
        behind = self._noted - self._synced
        return behind >= EVERY_WRITES or (self._linger_s is not None and behind > 0)

    def _has_work(self) -> bool:
        return bool(self._closing or self._waiting or self._error or self._is_due())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._linger_s and not (self._closing or self._waiting):
                    self._changed.wait_for(
                        lambda: self._closing or self._waiting, timeout=self._linger_s
                    )
                if self._error is not None:
                    return
                if self._closing and self._synced == self._noted:
                    break
                target, paths = self._noted, self._paths
                self._paths = set()
            self._sync(target, paths)
        self._finish()

    def _sync(self, target: int, paths: set[Path]) -> None:
        error = _sync_all(paths)
        if error is None and target - self._finished_at >= EVERY_WRITES:
            self._finish()
            self._finished_at = target
        with self._changed:
            # What a failed sync has lost is not known, so nothing after it can be trusted.
            self._error = error
            self._synced = target
            ready = [f for count, f in self._waiting if error is not None or count <= target]
            self._waiting = [w for w in self._waiting if error is None and w[0] > target]
        for future in ready:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _finish(self) -> None:
        try:
            self._after()
        except Exception as error:  # noqa: BLE001 - whatever it is, the writer has to hear of it
            with self._changed:
                self._error = StoreError(f"the ledger could not be synced: {error}")


def _sync_all(paths: set[Path]) -> StoreError | None:
    for path in sorted(paths):
        try:
            sync_path(path)
        except FileNotFoundError:
            continue  # pruned since
        except OSError as error:
            return StoreError(
                f"{path} could not be synced: {error.strerror}; records since the last sync may "
                "not be on disk. Check the disk and resume the run"
            )
    return None
