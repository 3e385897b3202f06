"""The settings, read from the environment in one place.

PERDURE_STATE_DIR
    All that the embedded server and the runs leave on this machine. Default: `perdure` in the
    user's state folder (`~/.local/state`; `~/Library/Application Support` on macOS).
PERDURE_QUEUE
    The task queue of the task and suite workflows. Default: `perdure`.
PERDURE_RETENTION_DAYS
    How long the embedded server keeps closed runs. Default: 90.
PERDURE_PORT, PERDURE_UI_PORT
    Ports of the embedded server and of its UI, on loopback. Default: free ones.
PERDURE_MAX_MEMORY_GB
    Memory that the environments' instances of this host may need together. Default: as much as the
    machine has.
PERDURE_BLOB_DIR
    The directory of large values. Default: `blobs` in the state directory.
PERDURE_BLOBS_SHARED
    1: every worker and client of this Temporal service sees that directory. Default: 0.
PERDURE_BLOBS
    `s3://bucket/prefix`: large values go to S3 instead (extra `perdure[s3]`).

Which Temporal service is used is told by Temporal's own settings (`temporalio.envconfig`):
`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, `TEMPORAL_CONFIG_FILE`, ...
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.envconfig import ClientConfigProfile

from perdure.errors import PerdureError
from perdure.state import StateDir

MOST_GB = 1_000_000

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


class SettingsError(PerdureError):
    """A setting has a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """What perdure is told by its environment; see the table above."""

    state: StateDir
    queue: str = "perdure"
    retention_days: int = 90
    port: int | None = None
    """None: a free one is chosen."""
    ui_port: int | None = None
    max_memory_gb: float | None = None
    """None: as much as the machine has."""
    blob_dir: Path | None = None
    """None: `state.blobs`."""
    blobs_url: str | None = None
    """`s3://bucket/prefix`; None: `blob_dir`."""
    blobs_shared: bool = False
    temporal_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment that Temporal's own settings are read from; not shown, as it has secrets."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `env` (default: the process's environment).

        Raises SettingsError naming the variable, its value and what it may be.
        """
        env = dict(os.environ if env is None else env)
        port = _number(env, "PERDURE_PORT", 1, 65535)
        ui_port = _number(env, "PERDURE_UI_PORT", 1, 65535)
        if port and port == ui_port:
            raise SettingsError(f"PERDURE_PORT and PERDURE_UI_PORT are both {port}; change one")
        return cls(
            state=StateDir(_state_dir(env)),
            queue=_queue(env),
            retention_days=_number(env, "PERDURE_RETENTION_DAYS", 1, 36500) or 90,
            port=port,
            ui_port=ui_port,
            max_memory_gb=_gigabytes(env, "PERDURE_MAX_MEMORY_GB"),
            blob_dir=_directory(env, "PERDURE_BLOB_DIR"),
            blobs_url=_blobs_url(env),
            blobs_shared=_switch(env, "PERDURE_BLOBS_SHARED"),
            temporal_env=env,
        )

    @property
    def blobs(self) -> Path:
        """The directory of large values, whether it is the default one or a named one."""
        return self.blob_dir or self.state.blobs


def temporal_configured(env: Mapping[str, str] | None = None) -> bool:
    """Whether Temporal's own settings name a service to use instead of the embedded one.

    Raises SettingsError if they cannot be read, or name a profile without an address.
    """
    profile = temporal_profile(env)
    return bool(profile.address)


def temporal_profile(env: Mapping[str, str] | None = None) -> ClientConfigProfile:
    """Temporal's own settings: environment over the profile of the configuration file.

    Raises SettingsError if they cannot be read, or name a profile without an address.
    """
    env = dict(os.environ if env is None else env)
    try:
        profile = ClientConfigProfile.load(override_env_vars=env)
    except Exception as error:  # the bridge raises RuntimeError, a bad path OSError
        raise SettingsError(
            f"Temporal's settings cannot be read: {error}; "
            "correct TEMPORAL_PROFILE, TEMPORAL_CONFIG_FILE or the file it names"
        ) from error
    if env.get("TEMPORAL_PROFILE") and not profile.address:
        raise SettingsError(
            f"TEMPORAL_PROFILE={env['TEMPORAL_PROFILE']!r} names a profile without an address; "
            "add `address` to it or set TEMPORAL_ADDRESS"
        )
    return profile


def _state_dir(env: Mapping[str, str]) -> Path:
    if named := _directory(env, "PERDURE_STATE_DIR"):
        return named
    if sys.platform == "darwin":
        return _home(env) / "Library" / "Application Support" / "perdure"
    # The base-directory convention: a relative value is to be ignored.
    base = env.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else _home(env) / ".local" / "state") / "perdure"


def _home(env: Mapping[str, str]) -> Path:
    try:
        return Path(env["HOME"]) if env.get("HOME") else Path.home()
    except RuntimeError as error:
        raise SettingsError(
            "this user has no home folder; set PERDURE_STATE_DIR to a folder of yours"
        ) from error


def _directory(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name, "")
    if not value:
        return None
    if "\0" in value or "\n" in value:
        raise SettingsError(f"{name}={value!r} is not a path; take the control characters out")
    path = Path(value)
    if value.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError as error:
            raise SettingsError(f"{name}={value!r}: {error}; write the whole path") from error
    return Path(os.path.abspath(path))


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    value = env.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
        raise SettingsError(f"{name}={value!r} is not a whole number from {low} to {high}")
    return int(value)


def gigabytes(text: str) -> float | None:
    """A number of GB such as `4` or `0.5`, above 0 and at most `MOST_GB`; None: it is none."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip(), re.ASCII):
        return None
    return number if 0 < (number := float(text)) <= MOST_GB else None


def _gigabytes(env: Mapping[str, str], name: str) -> float | None:
    value = env.get(name, "").strip()
    if not value:
        return None
    if (number := gigabytes(value)) is None:
        raise SettingsError(
            f"{name}={value!r} is not a number of GB such as 4 or 0.5, above 0 and at most"
            f" {MOST_GB:,}"
        )
    return number


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE | _FALSE:
        return value in _TRUE
    raise SettingsError(f"{name}={env[name]!r} is neither 1 nor 0")


def _queue(env: Mapping[str, str]) -> str:
    value = env.get("PERDURE_QUEUE", "") or "perdure"
    if not re.fullmatch(r"[A-Za-z0-9._/:-]{1,200}", value):
        raise SettingsError(
            f"PERDURE_QUEUE={value!r} is not a queue's name: "
            "ASCII letters, digits and . _ / : - only, at most 200"
        )
    return value


def _blobs_url(env: Mapping[str, str]) -> str | None:
    value = env.get("PERDURE_BLOBS", "")
    if not value:
        return None
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#]*)?", value):
        raise SettingsError(
            f"PERDURE_BLOBS={value!r} is not of the form s3://bucket or s3://bucket/prefix; "
            "for a directory, set PERDURE_BLOB_DIR"
        )
    return value.rstrip("/")
