"""Who asks the pool, and what is seen and carried over of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.environments import Port
from perdure.core.pool import Pool
from perdure.core.pool_decisions import (
    Grant,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.core.pool_desk import REMEMBERED
from perdure.core.pool_requests import Request
from perdure.core.pool_view import stats, view
from perdure.messages import Holder
from tests.core.pool_driver import Driver, env, granted, holder, of

# --- Who asks ---------------------------------------------------------------------------------


def test_asking_twice_under_one_id_takes_one_lease() -> None:
    driver = Driver()
    for _ in range(2):
        driver.ask("t", env("a"))
        driver.go()
        driver.ask("t", env("a"))
    assert granted(driver.told) == ["t"]
    assert driver.alive() == {"a": 1}


def test_a_waiter_that_leaves_and_a_holder_that_dies_make_way() -> None:
    """C13: A holds, B and C wait; B leaves, A is terminated; then C has it."""
    driver = Driver()
    a = env("a", max_instances=1)
    for name in "abc":
        driver.ask(name, a)
    driver.go()
    driver.release("b")
    assert [waiter.request.request_id for waiter in driver.pool.queue] == ["c"]
    driver.pool.close(holder("a", "another run"), driver.now)
    assert granted(driver.go()) == [], "a live holder is never robbed"
    driver.pool.close(holder("a"), driver.now)
    assert granted(driver.go()) == ["c"]
    for who in [holder("a"), holder("b"), holder("c", "another run")]:
        driver.pool.release("c", who, driver.now)
    driver.release("a", "a", "b")
    assert list(driver.pool.leases) == ["c"]
    assert driver.pool.holders == [holder("c")]


def test_a_request_that_arrives_after_its_release_makes_no_ghost() -> None:
    driver = Driver()
    driver.release("t")
    driver.ask("t", env("a"))
    assert granted(driver.go()) == []
    stranger = Request("u", holder("u"), (env("a"),))
    driver.pool.release("u", holder("u", "another run"), driver.now)
    driver.pool.request(stranger, driver.now)
    assert granted(driver.go()) == ["u"], "a foreign release keeps nobody away"


def test_only_so_many_old_requests_are_remembered() -> None:
    driver = Driver()
    for number in range(REMEMBERED + 50):
        driver.release(f"t{number}")
    assert len(driver.pool.state()["desk"]["over"]) == REMEMBERED


def test_a_grant_that_its_holder_does_not_know_is_taken_back() -> None:
    driver = Driver()
    driver.ask("t", env("a", max_instances=1))
    driver.ask("u", env("a", max_instances=1))
    driver.go()
    assert granted(driver.release("t")) == ["u"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([env("a"), env("a", digest="2")], "asks twice for a"),
        ([env("a", max_instances=0)], "environment a has max_instances: 0; allow 1 or more"),
    ],
)
def test_what_can_never_be_granted_is_refused_at_once(wanted: list[Definition], says: str) -> None:
    """PD7."""
    driver = Driver()
    driver.ask("t", *wanted)
    (refusal,) = of(Refuse, driver.go())
    assert refusal.kind == "bad_input"
    assert says in refusal.reason


def test_an_id_in_use_is_refused_to_another_holder() -> None:
    driver = Driver()
    driver.ask("t", env("a"))
    driver.pool.request(Request("t", holder("else"), (env("a"),)), driver.now)
    told = driver.go()
    assert [refusal.holder for refusal in of(Refuse, told)] == [holder("else")]
    assert granted(told) == ["t"]


# --- To be seen, and to go on -----------------------------------------------------------------


def test_the_figures_add_up() -> None:
    """P51, PD14."""
    driver = Driver()
    a = env("a", max_instances=1)
    for name in "tuv":
        driver.ask(name, a)
    driver.pool.declare(Demand("s", Holder("suite/s", "r"), 2, (EnvironmentSet((a,), 4),)))
    driver.go()
    driver.release("t")
    driver.hold = (ResetInstance,)
    driver.release("u")
    figures = stats(driver.pool)
    assert figures.total_tasks == 7
    assert (figures.pending_tasks, figures.running_tasks, figures.completed_tasks) == (5, 0, 2)
    assert (figures.total_instances, figures.available_instances) == (1, 1)
    assert (figures.in_use_instances, figures.instances_by_env) == (0, {"a": 1})


def test_an_instance_is_seen_with_its_state_its_ports_its_task_and_its_uses() -> None:
    """P16, P17, P27, P39, P47."""
    driver = Driver()
    a = env("a", ports={"A": Port(18080)}, docker_compose="a.yml")
    seen: list[dict[str, Any]] = []

    def look() -> None:
        seen.extend(view(driver.pool)["instances"])

    driver.ask("t", a)
    driver.hold = (StartInstance, StopInstance)
    (start,) = of(StartInstance, driver.go())
    look()
    driver.ask("u", a)
    driver.answer(start)
    driver.pool.declare(Demand("s", Holder("suite/s", "r"), 1, (EnvironmentSet((a,), 1),)))
    driver.go()
    look()
    driver.release("t")
    look()
    driver.release("u")
    look()
    driver.pool.declare(Demand("s", Holder("suite/s", "r"), 1))
    driver.go()
    look()
    states = [(i["state"], i["current_task_id"], i["use_count"]) for i in seen if i["number"] == 1]
    assert states == [
        ("starting", None, 0),
        ("in_use", "task/s/t/1", 1),
        ("in_use", "task/s/u/1", 2),
        ("available", None, 2),
        ("stopping", None, 2),
    ]
    first, last = seen[0], seen[-1]
    assert first["instance_id"] == f"a:{first['project_name']}"
    assert (first["env_name"], first["compose_file"]) == ("a", "a.yml")
    assert (first["ports"], first["last_used"]) == ({"A": 18080}, None)
    assert last["last_used"] == driver.now


def test_a_pool_goes_on_from_its_state_with_all_that_is_not_answered() -> None:
    """PD25: for everything that was ordered and everybody who was told but did not answer."""
    driver = Driver()
    a = env("a", ports={"A": Port(18080)}, env={"X": {"from_env": "Y"}})
    driver.ask("t", a)
    driver.hold = (StartInstance,)
    (start,) = of(StartInstance, driver.go())
    driver.pool.release("u", holder("u"), driver.now)
    driver.pool.host_joined("other", driver.facts, driver.now)
    saved = json.loads(json.dumps(driver.pool.state()))
    driver.pool = Pool.from_state(saved)
    assert json.loads(json.dumps(driver.pool.state())) == saved
    assert driver.pool.outstanding() == [start]
    assert driver.pool.definition(start.key) == a
    driver.answer(start)
    (grant,) = of(Grant, driver.go())
    assert driver.pool.outstanding() == [grant]
    driver.pool.acknowledge("t", holder("t"))
    assert driver.pool.outstanding() == []
    assert json.dumps(view(driver.pool))


def test_an_idle_pool_has_nothing_to_look_after() -> None:
    driver = Driver()
    driver.go()
    assert driver.pool.is_idle
    driver.ask("t", env("a"))
    driver.go()
    assert not driver.pool.is_idle
    driver.release("t")
    assert driver.pool.is_idle
    assert driver.pool.state()["fleet"]["definitions"] == {}
