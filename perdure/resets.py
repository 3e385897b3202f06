"""Resets of running environments by their ports alone, for programs that know nothing of a pool.

A task's own driver makes what it was given as good as new, between two of its turns::

    from perdure.resets import reset_all_environments
    reset_all_environments({"SHOP_PORT": int(os.environ["SHOP_PORT"])})
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from perdure.core.environments import Environment
from perdure.document_problems import InvalidDocuments
from perdure.dtap_layout import config_file
from perdure.environment_files import read_environments
from perdure.reset_endpoints import Patience, ResetFailed, call_endpoint

PATIENCE = Patience(answer_seconds=5.0, tries=3)
"""Whoever calls this waits for it (P46)."""

_log = logging.getLogger("perdure.resets")


async def reset_environments_by_ports(
    ports: Mapping[str, int],
    env_config: str | Path | None = None,
    *,
    patience: Patience = PATIENCE,
) -> int:
    """Reset every environment of an env.yaml that owns one of these port variables (P46).

    By their endpoints; scripts run inside of containers, which only a pool knows. One that fails
    is logged, and the others go on. `env_config`: None: that of the current folder, be it
    `env.yaml` or, in the DTap layout, `dt_arena/config/env.yaml`. Returns how many were reset.
    Raises InvalidDocuments for an env.yaml that cannot be used.
    """
    checked = await asyncio.to_thread(read_environments, Path(env_config or _usual_file()))
    if checked.problems:
        raise InvalidDocuments(checked.problems)
    owners = [
        environment
        for environment in checked.value.environments.values()
        if environment.reset_endpoints and environment.ports.keys() & ports.keys()
    ]
    return sum(await asyncio.gather(*(_reset(owner, ports, patience) for owner in owners)))


def reset_all_environments(ports: Mapping[str, int], env_config: str | Path | None = None) -> int:
    """The same, for code that is not async."""
    return asyncio.run(reset_environments_by_ports(ports, env_config))


def _usual_file() -> Path:
    own = Path("env.yaml")
    return own if own.exists() else config_file(Path.cwd(), own.name) or own


async def _reset(environment: Environment, ports: Mapping[str, int], patience: Patience) -> bool:
    try:
        for endpoint in environment.reset_endpoints:
            await call_endpoint(endpoint, ports, patience)
    except ResetFailed as error:
        _log.warning("environment %s could not be reset: %s", environment.name, error)
        return False
    return True
