"""Stands for an agent: does what its arguments say, over HTTP, and needs half a second for it."""

import json
import os
import time
from urllib.parse import quote
from urllib.request import Request, urlopen


def call(variable, method, path, body=None):
    # The port of the instance that this task has, whichever it is.
    url = f"http://127.0.0.1:{os.environ[variable]}{path}"
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(url, data, method=method), timeout=10) as response:
        return json.load(response)["items"]


def run(input):
    args = input["args"]
    time.sleep(0.5)
    if args.get("tidy"):
        for text in call("INBOX_PORT", "GET", "/items"):
            call("TODO_PORT", "POST", "/items", {"text": text})
            call("INBOX_PORT", "DELETE", f"/items/{quote(text)}")
    for text in args.get("add", []):
        call("TODO_PORT", "POST", "/items", {"text": text})
    for text in args.get("done", []):
        call("TODO_PORT", "DELETE", f"/items/{quote(text)}")
    return {"items": call("TODO_PORT", "GET", "/items")}
