"""Resets of running environments by their ports alone, for programs that know nothing of a pool.

from perdure.resets import reset_all_environments
reset_all_environments({"SHOP_PORT": 18080})
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from perdure.core.environments import Environment
from perdure.document_problems import InvalidDocuments
from perdure.environment_files import read_environments
from perdure.reset_endpoints import Patience, ResetFailed, call_endpoint

PATIENCE = Patience(answer_seconds=5.0, tries=3)
"""Whoever calls this waits for it (P46)."""

_log = logging.getLogger("perdure.resets")


async def reset_environments_by_ports(
    ports: Mapping[str, int],
    env_config: str | Path = "env.yaml",
    *,
    patience: Patience = PATIENCE,
) -> int:
    """Reset every environment of an env.yaml that owns one of these port variables (P46).

    By their endpoints; scripts run inside of containers, which only a pool knows. One that fails
    is logged, and the others go on. Returns how many were reset. Raises InvalidDocuments for an
    env.yaml that cannot be used.
    """
    checked = await asyncio.to_thread(read_environments, Path(env_config))
    if checked.problems:
        raise InvalidDocuments(checked.problems)
    owners = [
        environment
        for environment in checked.value.environments.values()
        if environment.reset_endpoints and environment.ports.keys() & ports.keys()
    ]
    return sum(await asyncio.gather(*(_reset(owner, ports, patience) for owner in owners)))


def reset_all_environments(ports: Mapping[str, int], env_config: str | Path = "env.yaml") -> int:
    """The same, for code that is not async."""
    return asyncio.run(reset_environments_by_ports(ports, env_config))


async def _reset(environment: Environment, ports: Mapping[str, int], patience: Patience) -> bool:
    try:
        for endpoint in environment.reset_endpoints:
            await call_endpoint(endpoint, ports, patience)
    except ResetFailed as error:
        _log.warning("environment %s could not be reset: %s", environment.name, error)
        return False
    return True
