"""What docker says of containers is read as it is meant, in every version (C06, PD10)."""

from __future__ import annotations

import pytest

from activities.docker_containers import Container, Ran, death, judge, parse_containers

ID = "0123456789ab" * 5


def line(
    status: str,
    *,
    name: str = "p-app-1",
    ports: str = "",
    service: str = "app",
    one_off: str = "False",
) -> str:
    return "\t".join([ID, name, status, ports, "p", service, one_off, "uuid", "7"])


def container(
    service: str = "app", state: str = "running", code: int = 0, **facts: str
) -> Container:
    facts.setdefault("id", f"{service}-id")
    return Container(
        name=f"p-{service}-1", project="p", service=service, state=state, code=code, **facts
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "state", "code", "health"),
    [
        ("Up 3 minutes", "running", 0, ""),
        ("Up Less than a second (health: starting)", "running", 0, "starting"),
        ("Up 2 hours (healthy)", "running", 0, "healthy"),
        ("Up 2 hours (unhealthy)", "running", 0, "unhealthy"),
        ("Up 5 seconds (Paused)", "paused", 0, ""),
        ("Exited (0) 3 seconds ago", "exited", 0, ""),
        ("Exited (137) Less than a second ago", "exited", 137, ""),
        ("Restarting (5) 1 second ago", "restarting", 5, ""),
        ("Created", "created", 0, ""),
        ("", "created", 0, ""),
        ("Dead", "dead", 0, ""),
        ("Removal In Progress", "dead", 0, ""),
    ],
)
def test_a_status_tells_state_code_and_health(
    status: str, state: str, code: int, health: str
) -> None:
    [found] = parse_containers(line(status) + "\n")
    assert (found.state, found.code, found.health) == (state, code, health)
    assert (found.project, found.service, found.pool, found.instance) == ("p", "app", "uuid", "7")


def test_lines_that_are_no_containers_are_skipped() -> None:
    """P33, PD10: a list in JSON, as some versions of compose print it, is no error."""
    printed = "\n".join(
        ['time="x" level=warning msg="old"', "", line("Created"), "\t" * 8, "{}", "[]"]
    )
    assert len(parse_containers(printed)) == 1
    assert parse_containers("") == []


def test_one_off_containers_and_absent_labels_are_told() -> None:
    printed = line("Up 1 second", one_off="True") + "\n" + line("Created", service="<no value>")
    one_off, other = parse_containers(printed)
    assert one_off.is_one_off
    assert other.service == ""


def test_an_instance_is_ready_when_every_container_is_up_or_done() -> None:
    """P33, C07."""
    init = container("init", "exited", 0)
    assert judge([init, container()]).state == "ready"
    assert judge([init, container(health="healthy")], ["init", "app"]).state == "ready"
    assert judge([init, container(health="starting")]).state == "waiting"
    assert judge([container(health="unhealthy")]).state == "waiting"  # it may recover
    assert judge([container()], ["app", "db"]).service == "db"
    assert judge([container(), container("tool", "exited", 1, is_one_off=True)]).state == "ready"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (container("init", "exited", 3), "exited with 3"),
        (container("init", "restarting", 5), "keeps ending with 5"),
        (container("init", "dead"), "dead"),
    ],
)
def test_what_has_failed_is_told_at_once_and_by_name(seen: Container, said: str) -> None:
    """PD9."""
    verdict = judge([seen, container(health="starting")])
    assert verdict.state == "failed"
    assert verdict.service == "init"
    assert said in verdict.reason


def test_an_instance_of_which_nothing_runs_is_none() -> None:
    assert judge([]).state == "failed"
    assert judge([container(state="exited")]).state == "failed"


def test_an_instance_dies_by_what_ran_and_runs_no_more() -> None:
    expected = {"app-id": Ran("app"), "db-id": Ran("db")}
    app, db, init = container(), container("db"), container("init", "exited", 0)
    assert death([app, db, init], expected) is None
    assert death([app, container("db", health="unhealthy"), init], expected) is None
    assert death([app, db], expected) is None  # a one-shot service that is gone is not missed
    gone = death([app, init], expected)
    assert gone
    assert (gone.service, gone.reason) == ("db", "its container is gone")
    ended = death([app, container("db", "exited", 0)], expected)
    assert ended
    assert (ended.service, ended.reason) == ("db", "ended with 0")
    assert death([], {})


def test_a_service_that_nobody_asks_may_end_with_0_at_any_time() -> None:
    """P33: it may still run when the instance is ready already."""
    expected = {"app-id": Ran("app"), "init-id": Ran("init", serves=False)}
    app = container()
    assert death([app, container("init", "exited", 0)], expected) is None
    failed = death([app, container("init", "exited", 3)], expected)
    assert failed
    assert (failed.service, failed.reason) == ("init", "exited with 3")
    alone = {"init-id": Ran("init", serves=False)}
    ended = death([container("init", "exited", 0)], alone)
    assert ended
    assert ended.reason == "all services have ended, with 0"


def test_what_is_published_or_has_a_health_check_serves() -> None:
    assert parse_containers(line("Up 1 second", ports="127.0.0.1:8000->80/tcp"))[0].serves
    assert parse_containers(line("Up 1 second (healthy)"))[0].serves
    assert not parse_containers(line("Up 1 second", ports="80/tcp"))[0].serves
