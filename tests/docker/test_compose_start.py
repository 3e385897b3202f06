"""Compose environments come up, or say why not and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.docker.kit import IMAGE, Stand, docker

APP = """
    services:
      app: {image: IMAGE, command: [httpd, -f, -p, "80"], ports: ["${APP_PORT}:80"]}
"""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


@contextmanager
def outsider() -> Iterator[int]:
    """Somebody who has a port that the engine knows nothing of."""
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        yield int(server.getsockname()[1])


async def test_an_instance_comes_up_once_and_carries_its_labels(stand: Stand) -> None:
    """P31, P49."""
    call = stand.call(
        """
        services:
          app: {image: IMAGE, command: [httpd, -f, -p, "80"], ports: ["${APP_PORT}:80"],
                volumes: ["data:/data"]}
        volumes: {data: }
        """,
        ports={"APP_PORT": free_port()},
    )
    call = replace(call, task="task/s/Ünïcode $id/1")
    assert (await stand.start(call)).ok
    made = docker("ps", "--quiet", "--filter", f"label=perdure.pool={stand.uuid}").split()
    assert len(made) == 1
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", made[0]))
    assert labels["perdure.environment"] == "shop"
    assert labels["perdure.instance"] == "1"
    assert labels["perdure.task"] == "task/s/Ünïcode $id/1", "C09"

    # As after the death of a worker that did not get to report it.
    stand.backend = stand.another_worker()
    assert (await stand.start(call)).ok
    again = docker("ps", "--quiet", "--filter", f"label=perdure.pool={stand.uuid}").split()
    assert again == made  # adopted, not replaced
    assert (await stand.backend.check(call, stand.folder(call))).ok
    assert len(stand.left()) == 3
    assert (await stand.stop(call)).ok
    assert stand.left() == []
    assert (await stand.stop(call)).ok  # nothing there is success


async def test_a_start_with_other_ports_replaces_what_is_there(stand: Stand) -> None:
    first = stand.call(APP, ports={"APP_PORT": free_port()})
    assert (await stand.start(first)).ok
    second = replace(first, ports={"APP_PORT": free_port()})
    assert (await stand.start(second)).ok
    shown = docker("ps", "--format", "{{.Ports}}", "--filter", f"label=perdure.pool={stand.uuid}")
    assert str(second.ports["APP_PORT"]) in shown
    assert str(first.ports["APP_PORT"]) not in shown
    stand.clear()


async def test_a_missing_image_is_final_and_quick_and_named_with_its_service(stand: Stand) -> None:
    """C02."""
    call = stand.call("services: {a: {image: IMAGE}, b: {image: 'no.such.host/img:1'}}")
    began = time.monotonic()
    result = await stand.start(call)
    assert not result.ok
    assert result.is_final
    assert "environment shop, service b" in result.reason
    assert "no.such.host/img:1" in result.reason
    assert "; correct the image's name" in result.reason
    assert any("no.such.host" in line for line in result.log)
    assert time.monotonic() - began < 30
    assert stand.left() == []


async def test_a_fixed_port_that_somebody_has_fails_and_leaves_no_husk(stand: Stand) -> None:
    """C02, PD6."""
    with outsider() as port:
        compose = f"""
            services:
              a: {{image: IMAGE}}
              b: {{image: IMAGE, ports: ["{port}:80"]}}
        """
        call = stand.call(compose, max_instances=1)
        result = await stand.start(call)
    assert not result.ok
    assert result.taken_ports == []  # other ports for its variables would change nothing
    assert "service b" in result.reason
    assert str(port) in result.reason
    assert "; stop what has the port" in result.reason
    assert stand.left() == []


async def test_a_conflict_at_up_names_the_ports_to_swap(stand: Stand) -> None:
    """C03: it was free when it was chosen."""
    with outsider() as port:
        result = await stand.start(stand.call(APP, ports={"APP_PORT": port}))
    assert (result.ok, result.taken_ports, result.at_start) == (False, [port], True)
    holder = docker("run", "--detach", "--publish", "80", IMAGE).strip()
    try:
        shown = docker("port", holder, "80").splitlines()[0]
        port = int(shown.rpartition(":")[2])
        result = await stand.start(stand.call(APP, ports={"APP_PORT": port}))
        assert (result.ok, result.taken_ports, result.at_start) == (False, [port], True)
    finally:
        docker("rm", "--force", holder)
    assert stand.left() == []


INIT_FIRST = """
    services:
      init: {image: IMAGE, command: [sh, -c, "echo counting; exit CODE"]}
      app: {image: IMAGE, healthcheck: {test: [CMD, "true"], interval: 1s},
            depends_on: {init: {condition: service_completed_successfully}}}
"""
INIT_ALONE = """
    services:
      init: {image: IMAGE, command: [sh, -c, "echo counting; exit CODE"]}
      app: {image: IMAGE, healthcheck: {test: [CMD, "true"], interval: 1s}}
"""


@pytest.mark.parametrize("compose", [INIT_FIRST, INIT_ALONE], ids=["depended on", "by nobody"])
async def test_a_one_shot_service_may_end_with_0(stand: Stand, compose: str) -> None:
    """C07."""
    call = stand.call(compose.replace("CODE", "0"), max_instances=1)
    result = await stand.start(call)
    assert result.ok, result
    stand.clear()


@pytest.mark.parametrize("compose", [INIT_FIRST, INIT_ALONE], ids=["depended on", "by nobody"])
async def test_a_service_that_exits_with_3_fails_the_start_with_its_log(
    stand: Stand, compose: str
) -> None:
    """C07, PD9: it is not passed over because `ps` does not list it."""
    call = stand.call(compose.replace("CODE", "3"), health_timeout_seconds=300.0)
    began = time.monotonic()
    result = await stand.start(call)
    assert not result.ok
    assert "service init" in result.reason
    assert "3" in result.reason.partition("service init")[2]
    assert "counting" in result.log
    assert time.monotonic() - began < 60
    assert stand.left() == []


async def test_a_service_that_ends_soon_after_it_came_up_fails_the_start(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C07: at the first look it runs, and has no health check that could tell more."""
    # What "soon" is: long enough for an engine with much else to do.
    monkeypatch.setattr("activities.compose._BEGIN_SECONDS", 4.0)
    compose = """
        services:
          app: {image: IMAGE, command: [sh, -c, "echo no config; sleep 0.3; exit 3"]}
    """
    result = await stand.start(stand.call(compose, health_timeout_seconds=300.0))
    assert not result.ok
    assert "service app: exited with 3" in result.reason
    assert result.log == ["no config"]
    assert stand.left() == []


async def test_a_service_that_keeps_being_restarted_fails_at_once(stand: Stand) -> None:
    """PD9."""
    compose = "services: {app: {image: IMAGE, restart: always, command: [sh, -c, 'exit 5']}}"
    call = stand.call(compose, health_timeout_seconds=300.0)
    result = await stand.start(call)
    assert not result.ok
    assert "service app" in result.reason
    assert "5" in result.reason.partition("service app")[2]


async def test_a_service_that_never_gets_healthy_is_not_used(stand: Stand) -> None:
    """P34, PD8."""
    compose = """
        services:
          good: {image: IMAGE}
          bad: {image: IMAGE, command: [sh, -c, "echo warming up; sleep 600"],
                healthcheck: {test: [CMD, "false"], interval: 1s, retries: 1}}
    """
    result = await stand.start(stand.call(compose, health_timeout_seconds=3.0))
    assert not result.ok
    assert "service bad: is not healthy" in result.reason
    assert "health_timeout" in result.reason
    assert result.log == ["warming up"]
    assert stand.left() == []


async def test_a_dependency_that_never_gets_healthy_is_named(stand: Stand) -> None:
    compose = """
        services:
          db: {image: IMAGE, command: [sh, -c, "echo no disk; sleep 600"],
               healthcheck: {test: [CMD, "false"], interval: 1s, retries: 1}}
          app: {image: IMAGE, depends_on: {db: {condition: service_healthy}}}
    """
    result = await stand.start(stand.call(compose))
    assert not result.ok
    assert "service db" in result.reason
    assert "no disk" in result.log
    assert "unhealthy; look at its health check" in result.reason
    assert stand.left() == []


async def test_an_up_that_takes_too_long_ends_at_its_limit(stand: Stand) -> None:
    """PD28."""
    compose = """
        services:
          slow: {image: IMAGE, command: ["sleep", "600"],
                 healthcheck: {test: [CMD, "false"], interval: 60s, start_period: 600s}}
          app: {image: IMAGE, depends_on: {slow: {condition: service_healthy}}}
    """
    result = await stand.start(stand.call(compose, start_timeout_seconds=4.0))
    assert not result.ok
    assert "not up within 4 s" in result.reason
    assert "start_timeout" in result.reason
    assert stand.left() == []


# --- Variables --------------------------------------------------------------------------------

HOSTILE = 'p$5w#rd$$x "q" \\n\' é ${HOME} `id`'


async def test_a_value_reaches_the_container_byte_for_byte(stand: Stand) -> None:
    """C11."""
    stand.variables["SHOP_PASS"] = "s3cr3t-$CANARY-9f"
    stand.backend = stand.another_worker()
    call = stand.call(
        """
        services:
          app: {image: IMAGE, environment: {P: "${P}", S: "${S}", D: "${NOT_SET:-ok}"}}
        """,
        env={"P": HOSTILE, "S": {"from_env": "SHOP_PASS"}},
    )
    assert (await stand.start(call)).ok
    folder = stand.folder(call)
    shown = 'echo "$P"; echo "$D"'
    assert await stand.backend.exec(call, folder, "app", shown, 30) == (0, f"{HOSTILE}\nok\n")
    # A secret is there, and is masked where it is printed.
    shown = 'echo "$S"; test "$S" = "s3cr3t-\\$CANARY-9f" && echo same'
    assert await stand.backend.exec(call, folder, "app", shown, 30) == (0, "***\nsame\n")
    stand.clear()


async def test_a_variable_that_nothing_sets_is_named(stand: Stand) -> None:
    """C11: the worker's own variables are not seen."""
    stand.variables["NOT_SET"] = "leak"
    stand.backend = stand.another_worker()
    result = await stand.start(
        stand.call("services: {app: {image: IMAGE, environment: {A: '${NOT_SET}'}}}")
    )
    assert result.is_final
    assert "NOT_SET" in result.reason
    assert "`env`" in result.reason
    required = stand.call("services: {app: {image: IMAGE, environment: {A: '${NEEDED:?please}'}}}")
    result = await stand.start(required)
    assert result.is_final
    assert "NEEDED" in result.reason


async def test_a_secret_that_is_not_here_is_named_and_final(stand: Stand) -> None:
    call = stand.call("services: {app: {image: IMAGE}}", env={"S": {"from_env": "NOT_HERE"}})
    result = await stand.start(call)
    assert result.is_final
    assert "NOT_HERE" in result.reason


# --- What cannot be there twice ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("compose", "said"),
    [
        ("services:\n  app:\n    image: IMAGE\n    container_name: my-shop\n", ":4: service app"),
        ('services:\n  app:\n    image: IMAGE\n    ports:\n      - "8080:80"\n', ":4: service app"),
        (
            'services:\n  app:\n    image: IMAGE\n    ports: ["${UNDECLARED:-8080}:80"]\n',
            "port 8080 of the host",
        ),
        ("services: {app: {image: IMAGE}}\nnetworks: {default: {name: mine}}\n", "network default"),
    ],
)
async def test_what_two_instances_would_both_claim_is_refused_with_its_line(
    stand: Stand, compose: str, said: str
) -> None:
    result = await stand.start(stand.call(compose))
    assert result.is_final
    assert said in result.reason
    assert "docker-compose.yml" in result.reason
    assert "max_instances: 1" in result.reason
    # It stays refused when it is asked for again.
    assert (await stand.start(stand.call(compose))).reason == result.reason


async def test_what_is_fixed_is_fine_for_a_single_instance(stand: Stand) -> None:
    name = f"perdure-test-{stand.uuid[:8]}"
    compose = f"services: {{app: {{image: IMAGE, container_name: {name}}}}}"
    call = stand.call(compose, max_instances=1)
    assert (await stand.start(call)).ok
    stand.clear()


# --- Files and images -------------------------------------------------------------------------


async def test_a_compose_file_that_is_none_is_told_with_its_place(stand: Stand) -> None:
    result = await stand.start(stand.call("services: {app: {imag: x}}"))
    assert result.is_final
    assert "docker-compose.yml" in result.reason
    call = stand.call("services: {}")
    (stand.root / "envs/shop/docker-compose.yml").unlink()
    result = await stand.start(call)
    assert result.is_final
    assert "environment shop: there is no compose file" in result.reason
    assert "; put it back" in result.reason


async def test_images_are_built_once_for_all_instances_and_starts_build_nothing(
    stand: Stand,
) -> None:
    compose = """
        services:
          app: {build: ., command: [httpd, -f, -p, "80"]}
    """
    calls = [stand.call(compose, number) for number in (1, 2)]
    (stand.root / "envs/shop/Dockerfile").write_text(f"FROM {IMAGE}\nCOPY marker /marker\n")
    (stand.root / "envs/shop/marker").write_text(stand.uuid)
    results = await asyncio.gather(
        *(stand.backend.prepare(call, stand.folder(call)) for call in calls)
    )
    assert all(result.ok for result in results), results
    digest = calls[0].definition["digest"][:32]
    built = docker("images", "--format", "{{.ID}}", f"perdure-build/shop-app:{digest}").split()
    assert len(built) == 1
    try:
        assert all(r.ok for r in await asyncio.gather(*(stand.start(call) for call in calls)))
        shown = await stand.backend.exec(calls[1], stand.folder(calls[1]), None, "cat /marker", 30)
        assert shown == (0, stand.uuid)
        await asyncio.gather(*(stand.stop(call) for call in calls))
    finally:
        docker("rmi", f"perdure-build/shop-app:{digest}")


async def test_a_build_that_fails_is_told_with_its_last_lines(stand: Stand) -> None:
    call = stand.call("services: {app: {build: .}}")
    (stand.root / "envs/shop/Dockerfile").write_text(
        f"FROM {IMAGE}\nRUN echo compiling {stand.uuid} && exit 9\n"
    )
    result = await stand.start(call)
    assert not result.ok
    assert "service app: its image cannot be built" in result.reason
    assert any("compiling" in line for line in result.log)
    assert stand.uuid not in docker("ps", "--all", "--no-trunc", "--format", "{{.Command}}")


async def test_the_hook_beside_the_compose_file_can_refuse(stand: Stand) -> None:
    """P30."""
    call = stand.call("services: {app: {image: IMAGE}}")
    hook = stand.root / "envs/shop/validate.py"
    hook.write_text("def validate(folder):\n    return False, 'no disk image in ' + folder\n")
    result = await stand.start(call)
    assert not result.ok
    assert "no disk image in" in result.reason
    hook.write_text("raise RuntimeError('broken hook')\n")
    assert (await stand.start(call)).ok
    stand.clear()


async def test_ids_that_look_alike_are_projects_of_their_own(stand: Stand) -> None:
    """C09."""
    names = ["a.b", "ab", "A.B", "-lead", "x" * 200]
    calls = [
        stand.call("services: {app: {image: IMAGE}}", number, name=name)
        for number, name in enumerate(names, 1)
    ]
    assert all(result.ok for result in [await stand.start(call) for call in calls])
    columns = '{{.Label "com.docker.compose.project"}} {{.Label "perdure.environment"}}'
    shown = docker("ps", "--format", columns, "--filter", f"label=perdure.pool={stand.uuid}")
    assert sorted(line.split()[1] for line in shown.splitlines()) == sorted(names)
    assert len({line.split()[0] for line in shown.splitlines()}) == len(names)
    stand.clear()
