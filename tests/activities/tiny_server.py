"""A server for environments that are processes.

Usage: python -IS tiny_server.py PORT [SECONDS BEFORE IT LISTENS]

`GET /env` tells its variables, `/pid` its process id, `/status/503` answers 503, `/say/WORD` prints
a word, `/die/3` ends it with status 3, `/break` makes it answer 503 from then on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    is_broken = False

    def do_GET(self) -> None:
        _, what, *rest = self.path.split("/")
        status, answer = 503 if Handler.is_broken else 200, "ok"
        if what == "env":
            answer = json.dumps(dict(os.environ) | {"cwd": os.getcwd()})
        elif what == "pid":
            answer = str(os.getpid())
        elif what == "status":
            status = int(rest[0])
        elif what == "say":
            print(rest[0], flush=True)
        elif what == "break":
            Handler.is_broken = True
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())
        if what == "die":
            self.wfile.flush()
            os._exit(int(rest[0]))

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def main(port: str, seconds: str = "0") -> None:
    time.sleep(float(seconds))
    print("listening", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
