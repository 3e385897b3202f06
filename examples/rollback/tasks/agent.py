"""Stands for an agent: adds to the order and packs a parcel. Its first attempt fails halfway."""

import json
import os
from pathlib import Path
from urllib.request import Request, urlopen

PARCEL = Path("parcel.txt")  # in the run's directory, which all attempts share


def add(text):
    url = f"http://127.0.0.1:{os.environ['DESK_PORT']}/items"
    with urlopen(Request(url, json.dumps({"text": text}).encode()), timeout=10) as response:
        return json.load(response)["items"]


def run(input):
    if PARCEL.exists():
        raise FileExistsError("somebody has packed a parcel before")
    PARCEL.write_text("\n".join(add("gift wrap")) + "\n")
    if os.environ["PERDURE_ATTEMPT"] == "1":
        raise RuntimeError("no card is left")
    PARCEL.write_text("\n".join(add("card")) + "\n")
    return {"parcel": PARCEL.read_text().splitlines()}
