"""`perdure retry RUN --from-step ID`: one task again, from one of its steps on."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cli.support import CommandLine, finish, wait_for

TASK = """\
id: t
steps:
- {{id: a, type: command, command: echo a >>log, creates: [kept]}}
- {{id: b, type: command, command: echo b >>log; touch made, creates: [made]}}
- {{id: c, type: command, command: 'echo c >>log; cat log; test -e {folder}/mended'}}
"""


def broken(perdure: CommandLine) -> None:
    """A suite of one task, of which the last step has failed."""
    perdure.write("t.yaml", TASK.format(folder=perdure.folder))
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 1


@pytest.mark.usefixtures("one_server")
def test_a_failed_task_goes_on_from_a_step_with_its_files_and_its_journal(
    perdure: CommandLine,
) -> None:
    broken(perdure)
    (perdure.folder / "t.yaml").unlink()  # the document is not needed
    (perdure.folder / "mended").touch()

    again = perdure("retry", "s/t", "--from-step", "c")

    assert again.returncode == 0, again.stderr
    assert "goes on from step 'c' of run " in again.stderr
    assert "runs c" in again.stderr
    assert "done before, and not run again: a, b" in again.stderr
    assert "work.copied" in again.stderr
    assert "goes on  from step c of run " in again.stdout
    record = json.loads(perdure("show", "s/t", "--json").stdout)
    assert record["context"]["results"]["c"]["stdout"] == "a\nb\nc\nc\n"
    assert [len(step["attempts"]) for step in record["steps"]] == [1, 1, 2]
    steps = perdure.state / "results" / "s" / "t" / "1" / "steps"
    assert sorted(path.name for path in steps.iterdir()) == ["a.1", "b.1", "c.1", "c.2"]

    suite = perdure("retry", "s")
    assert suite.returncode == 0, suite.stderr
    assert "s: 1 of 1 succeeded" in suite.stdout, "its suite finds that it has succeeded"
    assert json.loads(perdure("show", "s/t", "--json").stdout) == record


@pytest.mark.usefixtures("one_server")
def test_a_finished_task_runs_again_from_a_step_and_prints_its_record(
    perdure: CommandLine,
) -> None:
    (perdure.folder / "mended").touch()
    perdure.write("t.yaml", TASK.format(folder=perdure.folder))
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 0

    again = perdure("retry", "task/s/t/1", "--from-step", "b", "--json")

    assert again.returncode == 0, again.stderr
    record = json.loads(again.stdout)
    assert record["resumed_from"]["step"] == "b"
    assert record["attempt_epoch"] == 1
    assert record["context"]["results"]["c"]["stdout"] == "a\nb\nc\nb\nc\n"

    (perdure.folder / "mended").unlink()
    failing = perdure("retry", "s/t", "--from-step", "c")
    assert failing.returncode == 1
    assert "failure  step c: " in failing.stdout


@pytest.mark.usefixtures("one_server")
def test_what_cannot_be_gone_on_with_is_refused_with_the_reason(perdure: CommandLine) -> None:
    broken(perdure)
    for arguments, told in (
        (("s/t", "--from-step", "cc"), "s/t: task 't' has no step 'cc'; did you mean 'c'?"),
        (("s/u", "--from-step", "c"), "the server knows no run s/u"),
        (("s", "--from-step", "c"), "'s' is a suite; name one of its runs: SUITE/TASK"),
        (("s/t",), "run it again from a step on with --from-step ID"),
        (("s/t", "--from-step", "c", "--max-parallel", "2", "--limit", "x=1"),
         "leave out --limit, --max-parallel"),
    ):  # fmt: skip
        refused = perdure("retry", *arguments)
        assert refused.returncode == 2, refused.stderr
        assert told in refused.stderr
        assert "Traceback" not in refused.stderr


WEB = """\
environments:
  web:
    process:
      command: [python3, -m, http.server, "${WEB_PORT}"]
      ready: {tcp: WEB_PORT, timeout: 60}
    ports: {WEB_PORT: {default: 18970}}
memory: {required_gb: 0.1, reserve_gb: 0.1}
"""

USES = """\
id: t
environments: [web]
steps:
- {{id: aside, type: command, command: 'true', uses: []}}
- {{id: look, type: http, environment: web, port: WEB_PORT, path: /, expect: {{status: 200}},
   compensate: {{type: command, command: 'true'}}}}
- {{id: last, type: command, command: 'test -e {folder}/mended', depends_on: [aside], uses: []}}
"""


def test_environments_are_new_so_who_used_them_runs_again_and_that_is_said(
    perdure: CommandLine,
) -> None:
    perdure.write("env.yaml", WEB)
    perdure.write("t.yaml", USES.format(folder=perdure.folder))
    first = perdure("run", "t.yaml", "--suite", "s", "--env-config", "env.yaml")
    assert first.returncode == 1, first.stderr + first.stdout
    (perdure.folder / "mended").touch()

    again = perdure("retry", "s/t", "--from-step", "last")

    assert again.returncode == 0, again.stderr
    assert "its environments are new (web), so who used one runs again too: look" in again.stderr
    assert "done before, and not run again: aside" in again.stderr
    assert "is left as it is (`compensate`): look" in again.stderr
    record = json.loads(perdure("show", "s/t", "--json").stdout)
    assert [len(step["attempts"]) for step in record["steps"]] == [1, 2, 2]
    assert json.loads(perdure("pool", "--json").stdout or "{}").get("instances", []) == []


def test_ctrl_c_cancels_a_run_that_goes_on_and_it_is_not_started_twice(
    perdure: CommandLine,
) -> None:
    perdure.write(
        "t.yaml",
        f"id: t\nsteps: [{{id: a, type: command, command: 'touch {perdure.folder}/began; "
        f"while [ ! -e {perdure.folder}/go ]; do sleep 0.05; done'}}]\n",
    )
    (perdure.folder / "go").touch()
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 0
    (perdure.folder / "go").unlink()
    (perdure.folder / "began").unlink()
    running = perdure.start("retry", "s/t", "--from-step", "a", *perdure.hasty())
    wait_for(lambda: (perdure.folder / "began").exists(), "the step runs")

    second = perdure("retry", "s/t", "--from-step", "a")
    assert second.returncode == 2
    assert "s/t is still running" in second.stderr

    os.killpg(running.pid, signal.SIGINT)
    status, out, error = finish(running)
    assert status == 130, error
    assert "cancelling; cleaning up" in error
    assert "state    cancelled" in out
