"""Tables of a pool, for people: its hosts, instances, and those who wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.cli.console import printable
from perdure.cli.instances import DOING, counts, ports_text, reason_of
from perdure.cli.tables import table
from perdure.cli.times import clock
from perdure.pool_handle import SILENT_SECONDS

if TYPE_CHECKING:
    from rich.table import Table

REASON_CHARACTERS = 300


def head_line(view: Mapping[str, Any]) -> str:
    """`pool default: 3 in use, 1 starting; 4 tasks wait`."""
    parts = [counts(view["instances"]) or "no instances"]
    if waiting := len(view["waiting"]):
        parts.append("1 task waits" if waiting == 1 else f"{waiting} tasks wait")
    if view["closing"]:
        parts.append(f"closing: {printable(view['closing'], REASON_CHARACTERS)}")
    return f"pool {printable(view['pool'])}: {'; '.join(parts)}"


def hosts_table(view: Mapping[str, Any], now: float) -> Table:
    """The hosts that have joined."""
    made = table("HOST", "STATE", ("INSTANCES", "right"), ("FREE MEMORY", "right"))
    for host in view["hosts"]:
        free = host["free_gb"]
        made.add_row(
            printable(host["name"]),
            _host_state(host, now),
            f"{host['instances']}" + (f" of {host['capacity']}" if host["capacity"] else ""),
            "" if free is None else f"{free:.1f} GB",
        )
    return made


def _host_state(host: Mapping[str, Any], now: float) -> str:
    # The pool itself looks at its clock only when something happens.
    silent = now - host["heard"]
    return f"silent for {clock(silent)}" if silent >= SILENT_SECONDS else "up"


def instances_table(view: Mapping[str, Any], now: float) -> Table:
    """The instances that are not gone, each with the task that has it."""
    holders = {lease["request_id"]: lease["holder"] for lease in view["leases"]}
    shown = sorted(view["instances"], key=lambda i: (i["env_name"], i["number"]))
    rare = any(instance["reason"] for instance in shown)
    made = table(
        "ENVIRONMENT", "INSTANCE", "STATE", ("FOR", "right"), "HOST", ("USES", "right"), "PORTS",
        "TASK", *(["REASON"] if rare else []),
    )  # fmt: skip
    for instance in shown:
        made.add_row(
            printable(instance["env_name"]),
            printable(instance["project_name"]),
            DOING.get(instance["doing"], printable(instance["doing"])),
            clock(now - instance["since"]),
            printable(instance["host"]),
            str(instance["use_count"]),
            printable(ports_text(instance["ports"])),
            task_name(holders.get(instance["request_id"] or "", "")),
            *([reason_of(instance)] if rare else []),
        )
    return made


def failure_lines(view: Mapping[str, Any]) -> list[str]:
    """Environments of which instances failed that no task had asked for."""
    return [
        f"environment {printable(failure['env_name'])}: "
        + ("1 instance" if failure["count"] == 1 else f"{failure['count']} instances")
        + f" failed before a task asked for one: {reason_of(failure)}"
        for failure in view["failures"]
    ]


def waiting_table(view: Mapping[str, Any], now: float) -> Table:
    """The tasks that wait, in order of their arrival."""
    made = table("TASK", ("WAITS", "right"), "WANTS", "PRIORITY", "WHY")
    for waiter in view["waiting"]:
        made.add_row(
            task_name(waiter["holder"]),
            clock(now - waiter["since"]),
            ", ".join(map(printable, waiter["environments"])) or "a place of its suite",
            printable(waiter["priority"]),
            printable(waiter["waits_for"], REASON_CHARACTERS),
        )
    return made


def tables(view: Mapping[str, Any], now: float | None = None) -> Iterable[Table]:
    """Those that have a row. `now`: seconds since 1970."""
    now = time.time() if now is None else now
    made = (hosts_table(view, now), instances_table(view, now), waiting_table(view, now))
    return [some for some in made if some.row_count]


def task_name(workflow_id: str) -> str:
    """`nightly/refund/1`, as `perdure show` takes it."""
    return printable(workflow_id.removeprefix("task/"))
