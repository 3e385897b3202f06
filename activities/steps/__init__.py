"""The built-in step types, one a module; importing this package registers them."""

from __future__ import annotations

from activities.steps import command, http, python, verify

__all__ = ["command", "http", "python", "verify"]
