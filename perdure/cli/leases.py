"""What a run has, or had, of environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.cli.console import printable
from perdure.cli.instances import ports_text
from perdure.cli.times import span, time_of_day


def lease_lines(record: Mapping[str, Any]) -> list[str]:
    """The instances that a run has or had, how long it waited, and those that it lost."""
    lease = record.get("lease")
    if not lease or not lease["environments"]:
        return []
    waited = span(lease["waited_seconds"])
    if lease["state"] == "waiting":
        wanted = ", ".join(map(printable, lease["environments"]))
        lines = [f"waits    for {wanted}, of pool {printable(lease['pool'])}"]
    elif lease["host"] is None:
        lines = [f"lease    none, of pool {printable(lease['pool'])}, after {waited} of waiting"]
    else:
        where = f"of pool {printable(lease['pool'])} on {printable(lease['host'])}"
        lines = [f"lease    {where}, after {waited} of waiting"]
    for instance in record.get("instances") or []:
        ports = ports_text(instance["ports"])
        lines.append(
            f"         {printable(instance['environment'])} ({printable(instance['project'])})"
            + (f"  {printable(ports)}" if ports else "")
        )
    for loss in record.get("leases_lost") or []:
        lines.append(f"lost     at {time_of_day(loss['at'])}: {printable(loss['reason'], 300)}")
    return lines
