"""The built-in step types, one a module; importing this package registers them."""

from __future__ import annotations

from activities.steps import await_job, background, command, exec, http, python, reset, verify

__all__ = ["await_job", "background", "command", "exec", "http", "python", "reset", "verify"]
