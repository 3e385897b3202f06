"""Becomes a command beside a server process: in its directory, with its variables.

    process_inside.py PID DIRECTORY NAME,NAME,... PROGRAM ARGUMENT ...

The variables are those that the server was started with, so no secret stands on a command line.
Those that are named come from our own environment, and so does the marker: the command belongs to
the step that runs it. Linux only, standard library only.
"""

from __future__ import annotations

import os
import sys


def main(server: str, directory: str, names: str, *argv: str) -> None:
    """Turn into the command. Exit code 127: it cannot be started, and stderr says why."""
    try:
        with open(f"/proc/{server}/environ", "rb") as file:
            entries = file.read().split(b"\0")
        environment = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        for name in map(os.fsencode, ["PERDURE_MARKER", *filter(None, names.split(","))]):
            environment.pop(name, None)
            if name in os.environb:
                environment[name] = os.environb[name]
        os.chdir(directory)
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        sys.exit(_refuse(f"cannot run {argv[0]!r} in {directory!r}: {error.strerror}"))


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 127


if __name__ == "__main__":
    main(*sys.argv[1:])
