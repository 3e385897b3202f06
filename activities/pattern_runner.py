"""Searches texts for regular expressions, in a process that can be ended. Standard library only.

    python -I pattern_runner.py FILE

FILE is a JSON list of `[pattern, text]`; on standard output stands one character for each: `1`
found, `0` not, `x` not a pattern.
"""

from __future__ import annotations

import json
import re
import sys
import warnings


def main() -> None:
    """Search whatever the file named by the only argument says."""
    warnings.simplefilter("ignore")
    with open(sys.argv[1], encoding="utf-8") as file:
        questions = json.load(file)
    for pattern, text in questions:
        try:
            print("1" if re.search(pattern, text) else "0", end="", flush=True)
        except (re.error, OverflowError, RecursionError):
            print("x", end="", flush=True)


if __name__ == "__main__":
    main()
