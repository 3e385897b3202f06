"""The activity `carry_work`: a run that goes on from an earlier one begins with that one's files.

They are copied, not shared: the earlier run stays as it ended, whatever the later one does. Whole
or not at all, so a try that follows a lost worker finds all of it, or begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.leftovers import remove_created
from activities.places import RunPlace, UnsafeName
from perdure.messages import CarriedWork, CarryWork
from perdure.names import BAD_INPUT, CARRY_WORK
from perdure.steps import StepFailed

BEAT_SECONDS = 0.5


class Carrying:
    """Copies for one worker."""

    def __init__(self, host: str, runs: Path) -> None:
        self._host = host
        self._runs = runs

    @activity.defn(name=CARRY_WORK)
    async def carry_work(self, asked: CarryWork) -> CarriedWork:
        """Copy the working directory and what the attempts left, if they lie on this host.

        Raises ApplicationError (BadInput): a name that cannot be part of a path.
        """
        try:
            place = RunPlace.of(self._runs, asked.run)
            earlier = RunPlace.of(self._runs, replace(asked.run, run_id=asked.from_run_id))
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        copying = asyncio.ensure_future(asyncio.to_thread(self.carry, asked, earlier, place))
        while not copying.done():
            activity.heartbeat()
            await asyncio.wait({copying}, timeout=BEAT_SECONDS)
        return await copying

    def carry(self, asked: CarryWork, earlier: RunPlace, place: RunPlace) -> CarriedWork:
        """As the activity, in any thread."""
        if asked.hosts and not earlier.root.is_dir():
            if self._host not in asked.hosts:
                return self._missing(f"they are on {' and '.join(asked.hosts)}")
            # Whoever ran a step here left its outcome here, if nothing else.
            return self._missing(
                f"they are gone from {self._host}; go on from the step that makes them"
            )
        try:
            if not place.work.exists():  # it is the last to come: an earlier try has been here
                self._copy(earlier.steps, place.steps)
                self._copy(earlier.work_after(asked.restarts), place.work, asked.remove)
            return CarriedWork(found=True, host=self._host, files=_count(place.work))
        except shutil.Error as error:
            _, _, reason = error.args[0][0]
            return self._missing(f"they cannot be copied ({reason})")
        except OSError as error:
            return self._missing(f"they cannot be copied ({error.strerror or error})")

    def _missing(self, reason: str) -> CarriedWork:
        return CarriedWork(found=False, host=self._host, reason=reason)

    def _copy(self, source: Path, target: Path, left_out: list[str] | None = None) -> None:
        """Copy a directory, if it is there and is one, to a place that nobody has written to."""
        if source.is_symlink() or not source.is_dir() or target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        stem = f".{target.name}."
        for name in os.listdir(target.parent):
            if name.startswith(stem):
                shutil.rmtree(target.with_name(name), ignore_errors=True)
        draft = target.with_name(stem + secrets.token_hex(8))
        try:
            shutil.copytree(source, draft, symlinks=True, copy_function=_copy_plain)
            for path in left_out or ():
                with contextlib.suppress(StepFailed):  # a path that leads out: its step says so
                    remove_created(draft, path)
            os.rename(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _copy_plain(source: str, target: str) -> None:
    """Copy a file; pipes, sockets and devices are left out."""
    if stat.S_ISREG(os.lstat(source).st_mode):
        shutil.copy2(source, target, follow_symlinks=False)


def _count(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
