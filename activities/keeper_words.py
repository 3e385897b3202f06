"""What a worker and the keeper of a process say to each other, over one stream socket.

- worker: `FRAME_HEADER` (length of the next two), a JSON object (the fields of `ProcessSpec`,
  `hold_report_seconds`), the bytes for stdin; then single bytes (TOUCH, TERMINATE, INTERRUPT,
  NUDGE, KILL);
- keeper: lines of JSON: `{"started": pid}`, `{"nudged": reached}` for each NUDGE, then
  `{"exit": {...}}` or `{"unrecorded": "why"}` (its exit file could not be written); or only
  `{"failed": "why"}` (it could not be started).

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

FRAME_HEADER = struct.Struct(">QQ")
TOUCH, TERMINATE, INTERRUPT = b"t", b"T", b"I"
NUDGE, KILL = b"n", b"K"
"""One SIGINT for the command's process group, of which nothing else follows; SIGKILL for all."""


def receive(worker: socket.socket) -> tuple[dict[str, Any] | None, bytes | None]:
    """The request, and the bytes for stdin; None if the worker is gone before it is whole."""
    header = _receive_exactly(worker, FRAME_HEADER.size)
    if len(header) < FRAME_HEADER.size:
        return None, None
    spec_bytes, stdin_bytes = FRAME_HEADER.unpack(header)
    body = _receive_exactly(worker, spec_bytes + stdin_bytes)
    if len(body) < spec_bytes + stdin_bytes:
        return None, None
    spec = json.loads(body[:spec_bytes])
    return spec, bytes(body[spec_bytes:]) if spec["has_stdin"] else None


def _receive_exactly(worker: socket.socket, size: int) -> bytearray:
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while len(data) < size and (piece := worker.recv(min(size - len(data), 1 << 20))):
            data += piece
    return data


def tell(worker: socket.socket, message: dict[str, Any]) -> bool:
    """Send a line to the worker; False if it is gone."""
    try:
        worker.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True
