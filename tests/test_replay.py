"""Saved histories still replay: a failure here means that running workflows would break."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from perdure.config import Settings
from perdure.sandbox import sandbox
from perdure.storage import data_converter
from worker import HOST_WORKFLOWS, SHARED_WORKFLOWS, WORKFLOWS

HISTORIES = Path(__file__).parent / "histories"
SAVED = sorted(HISTORIES.rglob("*.json"))


def name_of(path: Path) -> str:
    return str(path.relative_to(HISTORIES).with_suffix(""))


def workflow_id_of(path: Path) -> str:
    """What the workflow was called; its code derives names from it."""
    return f"replayed/{name_of(path)}"


def replayer_in(state: Path) -> Replayer:
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(state)})
    return Replayer(
        workflows=[*WORKFLOWS, *SHARED_WORKFLOWS, *HOST_WORKFLOWS],
        data_converter=data_converter(settings),
        workflow_runner=sandbox(),
    )


def history_of(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(workflow_id_of(path), path.read_text("utf-8"))


@pytest.fixture(scope="module")
def replayer(tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    return replayer_in(tmp_path_factory.mktemp("state"))


@pytest.mark.parametrize("path", SAVED, ids=name_of)
async def test_a_saved_history_still_replays(path: Path, replayer: Replayer) -> None:
    await replayer.replay_workflow(history_of(path))


def test_there_is_a_history_of_each_main_path() -> None:
    names = {name_of(path).split(".")[0] for path in SAVED}
    assert names >= {
        "task/graph_with_parallel_branches",
        "task/retried_tolerated_and_failed",
        "task/worker_lost_and_handed_back",
        "task/cancelled",
        "task/continued_as_new",
        "task/slots_of_a_limit",
        "task/cancelled_while_it_waits_for_a_slot",
        "task/slots_over_a_continue_as_new",
        "task/limit_terminated_while_it_waits",
        "limit/continued_as_new_and_ended",
        "instance/started_reset_checked_and_stopped",
        "instance/ports_taken_and_reset_failed",
        "instance/unprepared_and_stopped_twice",
        "instance/stopped_while_it_started",
        "instance/lost",
        "instance/continued_as_new",
        "instance/pool_terminated",
        "instance/cancelled",
        "limit/grant_to_a_closed_task",
        "task/lease_granted_and_given_back",
        "task/lease_lost_twice",
        "task/lease_refused",
        "task/withdrawn",
        "task/lease_over_a_continue_as_new",
        "task/rollback_undone_and_run_again",
        "task/rollback_with_a_reset",
        "task/rollback_with_an_instance_replaced",
        "pool/lease_renewed",
        "task/rollback_that_undid_not_all",
        "task/rollback_cancelled",
        "task/rollback_over_a_continue_as_new",
        "suite/mixed_outcomes",
        "suite/cancelled",
        "suite/continued_as_new",
        "suite/task_left_by_an_earlier_run",
        "suite/asked_while_running",
        "suite/retried_stopped_and_unwritten",
        "suite/continued_as_new_with_a_look_for_a_cancel",
        "suite/with_a_pool",
        "suite/with_a_pool_cancelled",
        "task/slots_given_back_before_the_end_is_told",
        "job/done_in_pieces",
        "job/interrupted",
        "job/deaf_and_killed",
        "job/called_off_before_it_began",
        "job/lost",
        "job/started_again",
        "job/failed_and_broken",
        "job/cancelled",
        "task/jobs_launched_refused_and_stopped",
        "task/jobs_over_a_continue_as_new",
        "task/jobs_of_a_rollback",
        "task/jobs_of_a_lost_lease",
    }


@pytest.mark.parametrize(
    ("seed", "zone"), [("0", "UTC"), ("1", "Asia/Tokyo"), ("2", "America/Lima")]
)
def test_c23_histories_replay_under_any_hash_seed_and_time_zone(
    seed: str, zone: str, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
    command = [sys.executable, "-m", "tests.test_replay", str(tmp_path)]
    done = subprocess.run(
        command, env=env, cwd=Path(__file__).parent.parent, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == f"{len(SAVED)} histories replayed"


async def replay_all(state: Path) -> None:
    async def histories() -> AsyncIterator[WorkflowHistory]:
        for path in SAVED:
            yield history_of(path)

    # One worker for all of them; it raises at the first that does not replay.
    await replayer_in(state).replay_workflows(histories())
    print(f"{len(SAVED)} histories replayed")


if __name__ == "__main__":
    asyncio.run(replay_all(Path(sys.argv[1])))
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads can abort an interpreter that ends
