"""A list that is kept in memory and served over HTTP: `python3 server.py NAME PORT`.

GET /items, POST /items with {"text": TEXT}, DELETE /items/TEXT; POST /reset makes it new again.
GET /log tells all that has changed it since it was started, resets among it.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

NEW = {"todo": ["buy milk", "call Ada"], "inbox": ["pay the rent", "water the plants"]}
NAME = sys.argv[1]
items = [*NEW.get(NAME, [])]
log = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/log":
            return self.answer(200, log=log)
        return self.answer(200 if self.path == "/items" else 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/reset":
            items[:] = NEW.get(NAME, [])
            log.append("reset")
        elif self.path == "/items":
            items.append(json.loads(body)["text"])
            log.append(f"added {items[-1]}")
        else:
            return self.answer(404)
        return self.answer(200)

    def do_DELETE(self):
        text = unquote(self.path.removeprefix("/items/"))
        if text not in items:
            return self.answer(404)
        items.remove(text)
        log.append(f"removed {text}")
        return self.answer(200)

    def answer(self, status, **more):
        body = json.dumps({"items": items, **more}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
