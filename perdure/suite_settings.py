"""The keywords of the Python client that say what a suite runs, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from perdure import bounds
from perdure.core.problems import nearest
from perdure.lists import ListOptions
from perdure.messages import Json, PoolUse, SuiteInput, TaskOptions
from perdure.suite_input import check_id, suite_input
from perdure.suites import Changed
from perdure.workers import WorkerConfig

MAX_PARALLEL = 5
RETRY_INFRASTRUCTURE = 1


class BoundSettings(TypedDict, total=False):
    """How a suite runs, and what bounds it; None is the same as nothing said."""

    max_parallel: int | None
    """Tasks at once; 5 if nothing is said."""
    max_failures: int | str | None
    """Start nothing more once so many trials have failed: a number, or a share such as `"10%"`."""
    max_cost: float | None
    """Start nothing more once the summed `usage.cost` reaches it."""
    retry_infrastructure: int | None
    """How often a trial runs again after a failure of the infrastructure; 1 if nothing is said."""
    limits: Mapping[str, int] | None
    """Slots of each named limit that steps take by their key `limit`."""
    task_timeout: float | str | None
    """No task runs longer, whatever its document says: seconds, or text such as `"10m"`."""
    pool: str | None
    """The pool of environments that its tasks take theirs from; `default` if nothing is said."""
    keep_envs: bool | None
    """True: environments stay up when no task needs them any more."""


class RetrySettings(BoundSettings, total=False):
    """The keywords of `Perdure.retry_suite`; bounds that are not said stay as they were."""

    steps: Sequence[str]
    """Modules with step types."""
    worker: WorkerConfig | None
    """For the embedded server's worker process."""
    say: Callable[[str], None] | None
    """Called with notes for people."""


class SuiteSettings(RetrySettings, total=False):
    """The keywords of `Perdure.start_suite` and `Perdure.run_suite`."""

    suite: str | None
    """Its id; the same again goes on with it. Made up if there is none."""
    repeats: int | None
    """Trials of each task, over the documents' own."""
    options: TaskOptions | None
    only: Sequence[str]
    """Ids of the tasks to run; all of them if there is none."""
    seed: Mapping[str, Json] | None
    """Goes over each document's own."""
    fresh: bool
    """Start anew, whatever was done before."""
    changed: Changed | None
    """What to do if the suite is open with other tasks."""
    results_dir: str | Path | None
    env_config: str | Path | None
    """An env.yaml: the environments that tasks name."""
    mcp_config: str | Path | None
    root: str | Path | None
    """The project's folder: lists' and env.yaml's paths start there."""
    task_command: str | None
    """The one step of a task that is a DTap directory; `{task_dir}` in it is replaced."""
    domain: str | None
    """Keep the tasks with this `domain` in their metadata; likewise the next three."""
    type: str | None
    threat_model: str | None
    risk_category: str | None
    skip_existing: bool
    """Leave out DTap tasks that have been judged."""


def check_keywords(given: Mapping[str, object], known: type) -> None:
    """Refuse a keyword that is none. Raises TypeError, as a call with such a keyword does."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise TypeError(f"there is no keyword {name!r}{hint}")


def list_options(settings: SuiteSettings) -> ListOptions:
    """What the settings say about lists and tasks in the DTap layout."""
    options = settings.get("options") or TaskOptions()
    return ListOptions(
        env_config=_path(settings.get("env_config")),
        mcp_config=_path(settings.get("mcp_config")),
        root=_path(settings.get("root")),
        task_command=settings.get("task_command"),
        domain=settings.get("domain"),
        type=settings.get("type"),
        threat_model=settings.get("threat_model"),
        risk_category=settings.get("risk_category"),
        skip_existing=settings.get("skip_existing", False),
        agent_artifact_id=options.agent_artifact_id,
        agent_model=options.agent_model,
        results=_path(settings.get("results_dir") or options.results_dir),
    )


def rebound(start: SuiteInput, settings: RetrySettings) -> SuiteInput:
    """The start of a suite, with those of its bounds replaced that the settings name.

    Raises BadBound and PerdureError.
    """
    failures, cost = settings.get("max_failures"), settings.get("max_cost")
    fresh = suite_input(
        start.suite,
        start.tasks,
        max_parallel=chosen(settings.get("max_parallel"), start.max_parallel),
        options=bounded(start.options, settings),
        max_failures=start.max_failures if failures is None else failures,
        max_cost=start.max_cost if cost is None else cost,
        retry_infrastructure=chosen(
            settings.get("retry_infrastructure"), start.retry_infrastructure
        ),
        pool=pool_use(settings, start.pool),
        environments=start.environments,
    )
    share = start.max_failures_share if failures is None else fresh.max_failures_share
    return replace(fresh, digest=start.digest, max_failures_share=share)


def bounded(options: TaskOptions, settings: SuiteSettings | RetrySettings) -> TaskOptions:
    """The options with the limits and the time limit of the settings.

    Raises BadBound.
    """
    seconds = bounds.seconds("task_timeout", settings.get("task_timeout"))
    limits = bounds.slots("limits", settings.get("limits"))
    return replace(
        options,
        task_timeout_seconds=options.task_timeout_seconds if seconds is None else seconds,
        limits={**options.limits, **limits},
    )


def pool_use(settings: SuiteSettings | RetrySettings, before: PoolUse | None = None) -> PoolUse:
    """Which pool the suite's tasks use, and how; what is not said is as `before`.

    Raises BadId.
    """
    before = before or PoolUse()
    pool, keep = settings.get("pool"), settings.get("keep_envs")
    return replace(
        before,
        pool=before.pool if pool is None else check_id("pool", pool),
        keep_envs=before.keep_envs if keep is None else keep,
    )


def chosen(value: int | None, default: int) -> int:
    """The value, or the default if nothing is said."""
    return default if value is None else value


def worker_of(settings: SuiteSettings | RetrySettings) -> WorkerConfig:
    """The worker's configuration, with the modules of `steps`."""
    worker = settings.get("worker") or WorkerConfig()
    steps = dict.fromkeys([*worker.steps, *settings.get("steps", ())])
    return replace(worker, steps=tuple(steps))


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
