"""What a pool's view becomes on a terminal: counts, lines, tables, and what is waited for."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from perdure.cli.clearing import Leftovers, going, left_lines, of_suite, until_gone
from perdure.cli.environment_failures import environment_lines, reason_and_log
from perdure.cli.instances import Seen, Teller, counts, seen_by
from perdure.cli.leases import lease_lines
from perdure.cli.pool_tables import head_line, tables
from perdure.core.pool_instances import PUBLIC_STATES
from perdure.core.run_leased import LOG_ENDS_WITH
from perdure.errors import PerdureError


def instance(number: int, doing: str, **facts: Any) -> dict[str, Any]:
    state = PUBLIC_STATES[doing]  # type: ignore[index]
    return {
        "instance_id": f"shop:pool_shop_{number}",
        "number": number,
        "env_name": "shop",
        "key": "shop@1",
        "project_name": f"pool_shop_{number}",
        "compose_file": "envs/shop/docker-compose.yml",
        "host": "box",
        "state": state,
        "doing": doing,
        "since": 100.0,
        "ports": {"SHOP_PORT": 18080 + number},
        "request_id": None,
        "current_task_id": None,
        "wanted_by": None,
        "use_count": 2,
        "last_used": None,
        "reason": "",
        **facts,
    }


def view(*instances: dict[str, Any], **facts: Any) -> dict[str, Any]:
    host = {"name": "box", "away": False, "heard": 198.0, "capacity": 8, "free_gb": 3.25}
    return {
        "pool": "default",
        "open": True,
        "uuid": "u",
        "closing": None,
        "hosts": [{**host, "instances": len(instances)}],
        "instances": list(instances),
        "failures": [],
        "leases": [],
        "waiting": [],
        **facts,
    }


def lease(suite: str, state: str = "granted") -> dict[str, Any]:
    return {
        "request_id": f"r:{suite}",
        "holder": f"task/{suite}/refund/1",
        "suite": suite,
        "environments": ["shop"],
        "host": "box",
        "state": state,
        "since": 100.0,
        "reason": "",
    }


def waiter(suite: str, why: str) -> dict[str, Any]:
    return {
        "request_id": f"w:{suite}",
        "holder": f"task/{suite}/late/1",
        "suite": suite,
        "environments": ["shop", "mail"],
        "priority": "high",
        "since": 190.0,
        "overtaken": 0,
        "waits_for": why,
    }


def printed(shown: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as captured:
        for table in tables(shown, now=200.0):
            console.print(table)
    return captured.get()


# --- Counts and lines -------------------------------------------------------------------------


def test_instances_are_counted_by_what_people_know_of_them() -> None:
    states = ["leased", "checking", "renewing", "replacing", "clean", "resetting", "stopping"]
    shown = [instance(n, doing) for n, doing in enumerate(states)]

    assert counts(shown) == "3 in use, 1 starting, 2 idle, 1 stopping"
    assert Seen(shown).line == "instances: 3 in use, 1 starting, 2 idle, 1 stopping"
    assert Seen().line == ""


def test_a_suite_sees_instances_of_its_environments_and_its_own_tasks_alone() -> None:
    mail = instance(2, "leased", env_name="mail")
    shown = view(
        instance(1, "leased"),
        mail,
        waiting=[waiter("mine", "mail: 1 of 1 instances are there"), waiter("theirs", "x")],
        leases=[lease("mine", "checking"), lease("theirs", "checking")],
    )

    seen = seen_by("mine", ["shop"], shown)

    assert [i["number"] for i in seen.instances] == [1]
    assert seen.waits == {
        "task/mine/late/1": "mail: 1 of 1 instances are there",
        "task/mine/refund/1": "looking at shop",
    }


def test_an_instance_that_takes_the_place_of_another_is_told_as_any_other() -> None:
    teller = Teller()
    lives = ["replacing", "renewing", "leased", "renewing", "leased"]

    told = [teller.lines(Seen([instance(1, doing, since=100.0)])) for doing in lives]

    assert [len(lines) for lines in told] == [1, 1, 0, 0, 0]
    assert printed(view(instance(1, "renewing"))).count("resetting for its task") == 1


def test_each_start_and_each_end_of_an_instance_is_told_once() -> None:
    """P58."""
    teller = Teller()
    lives = ["starting", "starting", "resetting", "clean", "leased", "clean", "leased"]

    told = [
        teller.lines(Seen([instance(1, doing, since=100.0 if doing == "starting" else 112.5)]))
        for doing in lives
    ]
    dying = instance(1, "stopping", reason="nobody needs it")
    told += [teller.lines(Seen([dying]), now=120) for _ in range(2)]

    assert [line for lines in told for line in lines] == [
        "environment shop (pool_shop_1): starting on box with SHOP_PORT=18081",
        "environment shop (pool_shop_1): up after 12.5 s",
        "environment shop (pool_shop_1): stopping: nobody needs it",
    ]


def test_after_a_port_conflict_the_ports_are_told_that_it_has_now() -> None:
    teller = Teller()
    ports: list[dict[str, Any]] = [{"SHOP_PORT": port} for port in (18080, 8000, 8001)]

    told = [teller.lines(Seen([instance(1, "starting", ports=some)])) for some in ports[:2]]
    up = [instance(1, "clean", since=103.0, ports=some) for some in ports[2:]]

    assert [*told, teller.lines(Seen(up)), teller.lines(Seen(up))] == [
        ["environment shop (pool_shop_1): starting on box with SHOP_PORT=18080"],
        ["environment shop (pool_shop_1): starting with other ports: SHOP_PORT=8000"],
        ["environment shop (pool_shop_1): up after 3.00 s with other ports: SHOP_PORT=8001"],
        [],
    ]


def test_an_instance_that_nobody_saw_start_is_told_of_once() -> None:
    teller = Teller()

    told = [teller.lines(Seen([instance(1, doing)])) for doing in ("clean", "leased", "clean")]

    assert told == [["environment shop (pool_shop_1): up on box with SHOP_PORT=18081"], [], []]


def test_a_reason_to_wait_is_told_when_it_has_stood_for_a_while_and_once_for_all_tasks() -> None:
    teller = Teller()

    def waits(gb: float) -> Seen:
        reason = f"there are {gb} GB, and it needs 4 GB"
        return Seen(waits={"task/s/a/1": reason, "task/s/b/1": reason})

    told = [
        teller.lines(waits(gb), now=now) for now, gb in ((0, 1.5), (4, 2.0), (5, 2.1), (60, 3.9))
    ]

    words = "2 tasks wait for an environment: there are 2.1 GB, and it needs 4 GB"
    assert told == [[], [], [words], []]


def test_what_comes_from_outside_cannot_move_the_cursor() -> None:
    hostile = instance(1, "stopping", reason="\x1b[2Jgone\nand more", project_name="a\x1b[1m")

    (line,) = Teller().lines(Seen([hostile]), now=0)

    assert "\x1b" not in line
    assert "\n" not in line


# --- Tables -----------------------------------------------------------------------------------


def test_the_tables_say_who_has_what_where_and_who_waits_for_what() -> None:
    shown = view(
        instance(1, "leased", request_id="r:nightly"),
        instance(2, "stopping", reason="did not become healthy within 120 s"),
        leases=[lease("nightly")],
        waiting=[waiter("nightly", "mail: 1 of 1 instances are there, none of them free")],
    )

    assert head_line(shown) == "pool default: 1 in use, 1 stopping; 1 task waits"
    text = printed(shown)
    for told in (
        *("box", "2 of 8", "3.2 GB", "1:40", "nightly/refund/1", "SHOP_PORT=18081"),
        *("did not become healthy within 120 s", "shop, mail", "high", "0:10", "nightly/late/1"),
        "mail: 1 of 1 instances are there, none of them free",
    ):
        assert told in text, f"{told!r} is missing:\n{text}"


def test_a_host_that_is_not_heard_of_is_shown_as_silent() -> None:
    shown = view()
    assert " up " in printed(shown)

    shown["hosts"][0]["heard"] = 140.0

    assert "silent for 1:00" in printed(shown)


# --- Waiting until all is gone ----------------------------------------------------------------


def test_a_suite_leaves_what_it_holds_and_what_is_stopping_of_its_environments() -> None:
    find = of_suite("mine", ["shop"])
    shown = view(
        instance(1, "stopping"),
        instance(2, "leased", request_id="r:mine"),
        instance(3, "leased", request_id="r:theirs"),
        instance(4, "clean"),
        instance(5, "stopping", env_name="mail"),
        leases=[lease("mine"), lease("theirs")],
    )

    assert [i["number"] for i in find(shown).instances] == [1, 2]
    assert find(view(waiting=[waiter("mine", "")]))
    assert not find(view(instance(4, "clean"), waiting=[waiter("theirs", "")]))


def test_instances_on_their_way_out_are_found_by_host_and_by_environment() -> None:
    shown = view(instance(1, "stopping"), instance(2, "stopping", host="other"))

    assert len(going()(shown).instances) == 2
    assert [i["number"] for i in going(host="box")(shown).instances] == [1]
    assert not going(environment="mail")(shown)


async def test_waiting_ends_when_all_is_gone_and_a_pool_that_closes_has_nothing() -> None:
    views = [view(instance(1, "stopping")), None]

    async def look() -> dict[str, Any] | None:
        return views.pop(0)

    assert not await until_gone(look, going(), lambda line: None)
    assert not views


async def test_who_does_not_want_to_wait_hears_what_is_not_gone() -> None:
    leave = asyncio.Event()

    async def look() -> dict[str, Any] | None:
        leave.set()
        return view(instance(1, "stopping", reason="nobody needs it"))

    left = await until_gone(look, going(), lambda line: None, leave=leave)

    assert left_lines(left, "default") == [
        "not gone yet: environment shop (pool_shop_1) on box: nobody needs it",
        "the next run on the pool ends them; so does: perdure pool shutdown",
    ]
    assert left_lines(left, "night")[-1].endswith("perdure pool shutdown --pool night")
    assert left_lines(Leftovers(), "default") == []


async def test_a_worker_that_dies_meanwhile_does_not_end_the_wait() -> None:
    answers: list[Exception | dict[str, Any]] = [PerdureError("nobody answers"), view()]

    async def look() -> dict[str, Any] | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert not await until_gone(look, going(), lambda line: None)
    assert not answers


async def test_a_pool_that_never_answers_is_not_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.cli.clearing.DEAF_SECONDS", 0.01)
    told: list[str] = []

    async def look() -> dict[str, Any] | None:
        raise PerdureError("nobody answers")

    await until_gone(look, going(), told.append)
    assert "the pool does not answer" in told[-1]


async def test_patience_has_an_end() -> None:
    async def look() -> dict[str, Any] | None:
        return view(instance(1, "stopping"))

    assert await until_gone(look, going(), lambda line: None, patience_seconds=0.0)


# --- Failures ---------------------------------------------------------------------------------


def trial(status: str, kind: str | None = None, reason: str = "") -> dict[str, Any]:
    failure = kind and {"kind": kind, "step": None, "reason": reason}
    return {"trial": 1, "status": status, "failure": failure}


def test_environments_that_failed_stand_apart_once_with_the_last_lines_of_their_log() -> None:
    reason = f"environment shop: service db ended with status 3{LOG_ENDS_WITH}no space\x1b[2J\nbye"
    tasks = [
        {"id": name, "repeats": 1, "trials": [ended]}
        for name, ended in {
            "a": trial("failed", "environment", reason),
            "b": trial("failed", "environment", reason),
            "c": trial("failed", "task", "exit code 1"),
            "d": trial("succeeded"),
        }.items()
    ]

    lines = environment_lines({"tasks": tasks})

    assert lines[:2] == ["no environment for a, b:", "  environment shop: service db ended with "
                         "status 3"]  # fmt: skip
    assert lines[-2:] == ["  | bye", ""]
    assert "\x1b" not in "".join(lines)
    assert environment_lines({"tasks": tasks[2:]}) == []


@pytest.mark.parametrize("reason", [None, "", "exit code 1"])
def test_a_failure_without_a_log_is_its_reason_alone(reason: str | None) -> None:
    assert reason_and_log(reason) == (reason or "", [])


def test_a_run_shows_its_instances_and_those_that_it_lost() -> None:
    record = {
        "lease": {
            "pool": "default",
            "state": "over",
            "environments": ["shop"],
            "host": "box",
            "waited_seconds": 2.5,
        },
        "instances": [{"environment": "shop", "project": "p_1", "ports": {"SHOP_PORT": 18080}}],
        "leases_lost": [{"at": 0.0, "reason": "its host box is gone"}],
    }

    first, second, third = lease_lines(record)

    assert first == "lease    of pool default on box, after 2.50 s of waiting"
    assert second.split() == ["shop", "(p_1)", "SHOP_PORT=18080"]
    assert third.endswith("its host box is gone")
    assert lease_lines({}) == lease_lines({"lease": None}) == []
