"""`perdure retry RUN --from-step ID`: one task again, from one of its steps on."""

from __future__ import annotations

import json
import shutil
import signal
from subprocess import Popen

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
    assert again.stdout.endswith("\ns: 1 of 1 succeeded\n"), "it counts in its suite"
    for where in ((), ("--results", perdure.state / "results")):
        assert "totals   1 of 1 succeeded" in perdure("show", "s", *where).stdout
    record = json.loads(perdure("show", "s/t", "--json").stdout)
    assert record["context"]["results"]["c"]["stdout"] == "a\nb\nc\nc\n"
    assert [len(step["attempts"]) for step in record["steps"]] == [1, 1, 2]
    steps = perdure.state / "results" / "s" / "t" / "1" / "steps"
    assert sorted(path.name for path in steps.iterdir()) == ["a.1", "b.1", "c.1", "c.2"]

    suite = perdure("retry", "s")
    assert suite.returncode == 0, suite.stderr
    assert "suite s had succeeded before; nothing is run" in suite.stderr
    assert json.loads(perdure("show", "s/t", "--json").stdout) == record


SECRET = """\
id: t
redact: [token]
steps:
- {{id: a, type: command, command: echo a >>log}}
- {{id: b, type: command, command: 'cat {folder}/token >"$PERDURE_OUTPUT"'}}
- id: c
  type: command
  command: 'wc -l <log; grep -c hunter.. $PERDURE_CONTEXT; test -e {folder}/mended'
"""


@pytest.mark.usefixtures("one_server")
def test_a_finished_task_runs_again_from_a_step_with_its_secrets_and_prints_its_record(
    perdure: CommandLine,
) -> None:
    (perdure.folder / "mended").touch()
    perdure.write("token", '{"token": "hunter22"}')
    perdure.write("t.yaml", SECRET.format(folder=perdure.folder))
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 0

    forgotten = perdure("retry", "s/t", "--from-step", "c")
    assert forgotten.returncode == 2
    assert "step 'b' left a secret in the context" in forgotten.stderr
    assert "go on from 'b', or from a step before it" in forgotten.stderr

    again = perdure("retry", "task/s/t/1", "--from-step", "b", "--json")
    assert again.returncode == 0, again.stderr
    record = json.loads(again.stdout)
    assert record["resumed_from"]["step"] == "b"
    assert record["attempt_epoch"] == 1
    assert record["context"]["results"]["c"]["stdout"] == "1\n1\n"
    holding = [p for p in perdure.state.rglob("*") if p.is_file() and b"hunter22" in p.read_bytes()]
    assert holding == []

    (perdure.folder / "mended").unlink()
    shutil.rmtree(perdure.state / "runs" / "s")
    failing = perdure("retry", "s/t", "--from-step", "b")
    assert failing.returncode == 1
    assert "failure  step c: " in failing.stdout
    assert "without that run's files: they are gone from " in failing.stdout
    assert failing.stdout.endswith("\ns: 0 of 1 succeeded, 1 failed\n")
    assert failing.stderr.endswith("again with: perdure retry s/t --from-step b\n")


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


@pytest.mark.usefixtures("one_server")
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


@pytest.mark.usefixtures("one_server")
def test_the_same_command_goes_on_with_a_run_that_was_left_and_ctrl_c_cancels_it(
    perdure: CommandLine,
) -> None:
    began, go = perdure.folder / "began", perdure.folder / "go"
    perdure.write(
        "t.yaml",
        "id: t\nsteps:\n- {id: z, type: command, command: 'true'}\n- {id: a, type: command, "
        f"command: 'touch {began}; while [ ! -e {go} ]; do sleep 0.05; done'}}\n",
    )
    go.touch()
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 0
    go.unlink()

    def begin() -> Popen[str]:
        began.unlink()
        started = perdure.start("retry", "s/t", "--from-step", "a", *perdure.hasty())
        wait_for(began.exists, "the step runs")
        return started

    running = begin()
    for arguments, told in (
        (("retry", "s/t", "--from-step", "z"), "s/t runs, from step 'a' on: go on with it by "),
        (("retry", "s"), "s/t runs by itself, from one of its steps on: follow it by "),
        (("run", "t.yaml", "--suite", "s"), "s/t runs by itself"),
    ):
        refused = perdure(*arguments)
        assert refused.returncode == 2, refused.stderr
        assert told in refused.stderr
    status, _, error = finish(running, signal.SIGTERM)
    assert status == 130
    assert "left at once; go on with: perdure retry s/t --from-step a" in error

    running = begin()
    status, out, error = finish(running, signal.SIGINT)
    assert status == 130, error
    assert "runs from step 'a' on already; following it (run id " in error
    assert "cancelling; cleaning up" in error
    assert "state    cancelled" in out
    assert out.endswith("\ns: 0 of 1 succeeded, 1 cancelled\n")
    assert "again with: perdure retry s/t --from-step a" in error

    finish(begin(), signal.SIGTERM)
    cancelled = perdure("cancel", "s/t")
    assert "s/t is cancelled" in cancelled.stdout, cancelled.stderr
