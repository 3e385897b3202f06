"""The errors that people meet: each says what is wrong, where, and what to do."""

from __future__ import annotations


class PerdureError(Exception):
    """Something a user can put right.

    Its text is one or two lines that say what, where and what to do. The command line prints
    it without a traceback and exits with `exit_code`.
    """

    exit_code = 2
