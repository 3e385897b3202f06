"""The frozen dataclasses that workflows, activities and clients exchange.

Fields are only ever added, with a default: histories remember the old shape. Everything that
travels is JSON; `Any` stands for a JSON value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any
"""Any JSON value: None, bool, int, float, str, list, or dict with string keys."""

SUMMARY_LIMIT_BYTES = 2048
"""What a task hands its suite at most: a child's result is copied into its parent's history."""

FailureKind = Literal["task", "timeout", "environment", "infrastructure", "bad_input"]


# --- What a step hands back -----------------------------------------------------------------


@dataclass(frozen=True)
class StepFailure:
    """Why an attempt did not succeed."""

    message: str
    """For people; secrets masked; at most 8 KiB."""
    type: str = "StepFailed"
    """What `non_retryable_errors` names."""
    kind: FailureKind = "task"
    retryable: bool = True
    """False: no further attempt, whatever `retry` says."""


@dataclass(frozen=True)
class Artifact:
    """A file that a step left in `PERDURE_ARTIFACTS`."""

    path: str
    """Below the attempt's artifacts directory, `/` between the parts."""
    size_bytes: int
    kept: bool = True
    """False: listed only (over the size cap, or a link)."""


@dataclass(frozen=True)
class StepOutcome:
    """How one attempt of a step ended, with everything that it wrote.

    Failed and cancelled attempts have a diff too: compensations and the record need it.
    """

    status: Literal["succeeded", "failed", "cancelled"]
    diff: list[dict[str, Any]] = field(default_factory=list)
    """Operations of `perdure.core.context`: exactly what this step wrote."""
    result: Json = None
    """The step's result, as it stands at `results.<step id>` (already part of the diff)."""
    failure: StepFailure | None = None
    host: str = ""
    """The host that ran it; a task stays on the host of its first step."""
    duration_seconds: float = 0.0
    usage: dict[str, float] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    creates: list[str] = field(default_factory=list)
    """Paths declared under `creates` that exist after the step."""
    adopted: bool = False
    """True: found on disk, written by an earlier attempt whose report was lost."""
    lost: dict[str, str] = field(default_factory=dict)
    """Of a failed attempt: the environments whose instances were found dead after it, and why."""


# --- Running one task -------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskOptions:
    """How a task is run, beside its document."""

    start_step: int = 0
    """Steps before it count as done (T15)."""
    end_step: int | None = None
    """Steps from it on are not run; None: to the end."""
    agent_model: str | None = None
    agent_artifact_id: str | None = None
    multi_host: bool = False
    """True: the task's queue is shared by several hosts, so the task is bound to the host that
    takes its first activity, and its steps go to that host's queue. False: one host, one queue
    (eager start serves)."""
    results_dir: str | None = None
    """None: the worker's default, `<state>/results`."""
    search_attributes: bool = True
    """False: the server does not know ours, so none are sent."""
    history_limit_events: int | None = None
    """Continue as new at this many events; None: when the server suggests it."""
    task_timeout_seconds: float | None = None
    """No task runs longer, whatever its document says; waiting for a slot is not counted."""
    limits: dict[str, int] = field(default_factory=dict)
    """How many slots of each named limit there may be in use, on the whole server, when a step of
    this suite takes one."""
    slot_reminder_seconds: float | None = None
    """How often a task that waits for slots makes sure that its limits know; None: as
    `workflows.options` has it."""
    host_patience_seconds: float | None = None
    """How long a task that has ended waits for its host to take up the record; None: likewise."""


@dataclass(frozen=True)
class PoolUse:
    """How the tasks of a suite use a pool; part of `SuiteInput` and of `TaskInput`."""

    pool: str = "default"
    max_parallel: int | None = None
    """Leases of the suite at a time."""
    keep_envs: bool = False
    """True: instances stay when nobody needs them any more."""
    local_words: bool = False
    """True: what is told to the pool is told by local activities, and what it makes no use of is
    left out. False: runs of the first version, which go on as they began."""


@dataclass(frozen=True)
class Resumed:
    """What a run takes over from an earlier one of its task; part of `TaskInput`."""

    run_id: str
    """The earlier run: the first run id of its chain."""
    step: str
    """From which on the task runs again."""
    epoch: int = 1
    rev: int = 1
    completed: list[str] = field(default_factory=list)
    """The steps that count as done, in the order of their ends."""
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By step, its attempts so far (`perdure.core.record.StepRecord.to_state`)."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The journal (`perdure.core.journal.Entry`) without what runs again."""
    files_of: str | None = None
    """Whose files are taken over, where the earlier run ended before it had those of the run that
    it went on from itself; None: the earlier run's."""
    restarts: int = 0
    """Of the run whose files are taken over: they tell its last working directory."""
    hosts: list[str] = field(default_factory=list)
    """Where its attempts were made."""


@dataclass(frozen=True)
class TaskInput:
    """Start of a TaskWorkflow."""

    task: dict[str, Any]
    """The validated document, seeds already filled in (`perdure.core.task.Task.to_dict`)."""
    suite: str
    trial: int = 1
    index: int = 0
    """The task's position in its suite's list."""
    digest: str = ""
    """Of document, embedded files, seeds and relevant options; equal digests, equal work."""
    seed: dict[str, Json] = field(default_factory=dict)
    """The seeds that were filled in; they stand at `metadata.seed` of the context."""
    metadata: dict[str, Json] = field(default_factory=dict)
    """More for the context's metadata."""
    options: TaskOptions = field(default_factory=TaskOptions)
    folder: str | None = None
    """Where the document lies: relative paths of `from_file` start there; None: the worker's
    current directory."""
    suite_workflow_id: str | None = None
    """Who hears of the end by the signal `trial_ended`; None: a task started by itself."""
    state: dict[str, Any] | None = None
    """Carried over a continue-as-new (`perdure.core.run.TaskRun.state`)."""
    pool: PoolUse | None = None
    """Where the task takes its lease before its first step; None: it takes none."""
    environments: list[dict[str, Any]] = field(default_factory=list)
    """Definitions of the environments that it names, in its order."""
    resumed: Resumed | None = None
    """The run that it goes on from; None: it begins at its beginning."""


@dataclass(frozen=True)
class RunRef:
    """Names one run of one task, wherever it goes on."""

    workflow_id: str
    run_id: str
    """The first run id of the chain; stable across continue-as-new."""
    suite: str
    task_id: str
    trial: int


@dataclass(frozen=True)
class StepInstance:
    """An instance as a step of its holder needs it; part of `StepTask`."""

    environment: str
    project: str
    ports: dict[str, int] = field(default_factory=dict)
    number: int = 0
    pool: str = "default"
    pool_uuid: str = ""
    definition: dict[str, Any] | None = None
    """What steps that act on it need, and whoever looks whether it is still alive."""


@dataclass(frozen=True)
class StepTask:
    """Input of the activity `run_step`: one attempt of one step."""

    run: RunRef
    step: dict[str, Any]
    """The step's document (`perdure.core.task.Step.to_dict`)."""
    index: int
    total: int
    attempt: int
    """1, 2, ... over all starts of this step, rollbacks included."""
    epoch: int
    """Goes up by one with each rollback; a query for diffs of another epoch is refused."""
    version: int
    """Number of diffs applied to the context this step is to see."""
    context: dict[str, Any] | None = None
    """None: larger than 32 KiB; the worker asks the workflow by the query `context_diffs`."""
    lost_attempts: list[int] = field(default_factory=list)
    """Earlier attempts whose worker was lost; the newest outcome they left is adopted."""
    redact: list[str] = field(default_factory=list)
    """The document's own redacted keys, beside the built-in ones."""
    environments: list[str] = field(default_factory=list)
    folder: str | None = None
    results_dir: str | None = None
    suite_workflow_id: str | None = None
    instances: list[StepInstance] = field(default_factory=list)
    """Those of the task's lease, in the order of its environments."""
    restarts: int = 0
    """How often the run has started over: each time in a new working directory."""


@dataclass(frozen=True)
class CompensateStep:
    """Input of the activity `compensate_step`: undo what one attempt of a step did. Idempotent."""

    run: RunRef
    step: dict[str, Any]
    """The step's document; of one that declares how it is undone, `compensate` included."""
    number: int
    """Unique in the run."""
    kind: str
    """`creates`: remove the files that it declared. `declared`: run its `compensate`. `type`: call
    the undo function of its type."""
    attempt: int
    epoch: int
    """Of the attempt; that of `context` may be a later one."""
    status: str
    """How the attempt ended: succeeded, failed, cancelled, lost or interrupted."""
    diff: list[dict[str, Any]] = field(default_factory=list)
    """What the attempt wrote, as far as it is known."""
    is_written: bool = False
    """Whether the context below holds the diff already."""
    creates: list[str] = field(default_factory=list)
    """Paths below the run's directory that are to be removed."""
    context_epoch: int = 0
    version: int = 0
    context: dict[str, Any] | None = None
    """As of `StepTask`: the context of before the rollback."""
    redact: list[str] = field(default_factory=list)
    environments: list[str] = field(default_factory=list)
    folder: str | None = None
    suite_workflow_id: str | None = None
    instances: list[StepInstance] = field(default_factory=list)
    restarts: int = 0


@dataclass(frozen=True)
class CompensationOutcome:
    """Result of the activity `compensate_step`: it is undone."""

    host: str = ""
    duration_seconds: float = 0.0
    adopted: bool = False
    """True: found on disk, written by an earlier try whose report was lost."""
    removed: list[str] = field(default_factory=list)
    """Of the kind `creates`: the paths at which something stood."""


@dataclass(frozen=True)
class CarryWork:
    """Input of the activity `carry_work`: give a run the files of an earlier one. Idempotent."""

    run: RunRef
    from_run_id: str
    restarts: int = 0
    """Of the earlier run."""
    hosts: list[str] = field(default_factory=list)
    """Where its files may lie."""
    remove: list[str] = field(default_factory=list)
    """Paths below the working directory that are left out: those of steps that run again."""


@dataclass(frozen=True)
class CarriedWork:
    """Result of the activity `carry_work`."""

    found: bool
    """False: the run begins with an empty working directory."""
    host: str = ""
    files: int = 0
    reason: str = ""
    """Why there are none."""


@dataclass(frozen=True)
class ContextRequest:
    """Argument of the query `context_diffs`: what a worker's cached context lacks."""

    epoch: int
    have: int
    """Diffs that the worker has applied; -1: it has nothing, not even the seed."""
    want: int


@dataclass(frozen=True)
class ContextDiffs:
    """Answer to `context_diffs`."""

    stale: bool = False
    """True: the workflow is in another epoch; the attempt that asks is a straggler."""
    seed: dict[str, Any] | None = None
    """The base to which diffs are applied; given when `have` was -1."""
    diffs: list[list[dict[str, Any]]] = field(default_factory=list)
    """Diffs number `have` + 1 (or 1) to `want`, in order."""


@dataclass(frozen=True)
class TrialSummary:
    """What a task hands its suite; at most 2 KiB as JSON, long texts clipped."""

    task_id: str
    trial: int
    run_id: str
    status: Literal["succeeded", "failed", "cancelled"]
    failure_kind: FailureKind | None = None
    failure_step: str | None = None
    failure_reason: str | None = None
    steps_total: int = 0
    steps_done: int = 0
    attempts: int = 0
    started_at: float = 0.0
    """Seconds since 1970."""
    duration_seconds: float = 0.0
    usage: dict[str, float] = field(default_factory=dict)
    note: str | None = None
    """What went wrong beside the task, for example a record that could not be written."""
    withdrawn: bool = False
    """True: it had not begun, and its suite did not want it any more: it counts as not run."""
    unwritten: bool = False
    """True: its record is not among the files of results; the workflow's history has it."""
    rollbacks: int = 0
    """How often it took steps back and ran them again."""


@dataclass(frozen=True)
class FinishTask:
    """Input of the activity `finish_task`: write the record, tell the suite. Idempotent."""

    run: RunRef
    record: dict[str, Any]
    events: list[dict[str, Any]]
    summary: TrialSummary
    results_dir: str | None = None
    suite_workflow_id: str | None = None
    suite_run_id: str | None = None
    """The run of the suite that started the task. While it lasts it hears of the end by its
    handle; a later one is told by a signal."""


# --- Running a suite --------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite."""

    task: dict[str, Any]
    digest: str
    seed: dict[str, Json] = field(default_factory=dict)
    repeats: int = 1
    folder: str | None = None


@dataclass(frozen=True)
class SuiteInput:
    """Start of a SuiteWorkflow."""

    suite: str
    tasks: list[SuiteTask]
    max_parallel: int = 5
    options: TaskOptions = field(default_factory=TaskOptions)
    digest: str = ""
    """Of all tasks' digests, in order: equal means the documents did not change."""
    finished: list[TrialSummary] = field(default_factory=list)
    """Trials taken over from an earlier run of the suite; they do not run again."""
    max_failures: int | None = None
    """Start nothing more once so many trials have failed; None: whatever fails."""
    max_failures_share: str | None = None
    """The share of all trials that `max_failures` was made from, as it was written: `10%`."""
    max_cost: float | None = None
    """Start nothing more once the trials' `usage.cost` sums up to it, taken-over ones included."""
    retry_infrastructure: int = 0
    """How often a trial runs again after a failure of the kind `infrastructure`."""
    by_priority: bool = False
    """Start tasks of higher `priority` first; False: in order of the list, as suites do that began
    before there were priorities."""
    since: float | None = None
    """Runs of trials that began before then, in seconds since 1970, are not taken over: the suite
    was started anew. None: all may be."""
    state: dict[str, Any] | None = None
    """Carried over a continue-as-new (`perdure.core.suite.Suite.state`)."""
    pool: PoolUse | None = None
    """Where its tasks take their leases; None: no task needs an environment, and none is asked."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Definitions of all environments that tasks name, by name."""


@dataclass(frozen=True)
class SuiteResult:
    """Result of a SuiteWorkflow; every trial stands in the results' files and the query."""

    suite: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    not_run: int = 0
    """Trials that were not started: the suite was cancelled, or stopped at one of its limits."""
    usage: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgressRequest:
    """Argument of the suite's query `progress`."""

    offset: int = 0
    """Trials that have ended and are already known to the asker."""


@dataclass(frozen=True)
class SuiteProgress:
    """Answer to `progress`."""

    suite: str
    digest: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    running: list[str]
    """Workflow ids, in order of start."""
    pending: int
    ended: list[TrialSummary]
    """Trials that ended since `offset`, in order of their end."""
    next_offset: int
    max_parallel: int = 0
    paused: bool = False
    stopped: str | None = None
    """Why nothing more is started, for people: `3 failures (max_failures: 3)`; None: go on."""
    usage: dict[str, float] = field(default_factory=dict)
    """Summed over the trials' last ends."""
    not_run: int = 0
    """Once the suite is over: trials that were never started; then `pending` is 0."""


@dataclass(frozen=True)
class Requeued:
    """Answer to the suite's update `requeue`."""

    told: str
    """For people."""
    trials: list[str]
    """Workflow ids of those that run again: who reads the history cannot tell by the question."""


@dataclass(frozen=True)
class WriteSuite:
    """Input of the activity `write_suite`: the suite's own file of results. Idempotent."""

    suite: str
    run_id: str
    digest: str
    status: Literal["running", "succeeded", "failed", "cancelled"]
    tasks: list[dict[str, Any]]
    """Per task: id, index, digest, repeats."""
    started_at: float
    results_dir: str | None = None
    trials: list[TrialSummary] = field(default_factory=list)
    """The last end of each trial that has ended."""
    stopped: str | None = None


@dataclass(frozen=True)
class WriteMissing:
    """Input of the activity `write_missing`: write again the records that could not be written.

    Idempotent. Its result: the summaries of those that still cannot be, with the reason as note.
    """

    suite: str
    trials: list[TrialSummary]
    results_dir: str | None = None


# --- Named limits -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotRequest:
    """Ask a limit for one slot. Idempotent by `request_id`."""

    limit: str
    request_id: str
    """`<first run id>:<step>#<epoch>.<attempt>`."""
    slots: int
    """The asker's number: it gets a slot while fewer than that are held by anybody."""
    holder: str
    """Workflow id of the task, which hears of the grant by the signal `slot_granted`."""
    holder_run_id: str
    """The first run id of the task's chain: a later run of the same id is another holder."""
    priority: str = "medium"


@dataclass(frozen=True)
class SlotRelease:
    """Give a slot back, or leave the queue. Idempotent; unknown ids change nothing."""

    limit: str
    request_id: str


@dataclass(frozen=True)
class SlotGrant:
    """Argument of the signal `slot_granted`: the request holds a slot from now on."""

    limit: str
    request_id: str


@dataclass(frozen=True)
class RemindLimits:
    """Input of the activity `remind_limits`: ask again what their limits do not know of."""

    requests: list[SlotRequest]


@dataclass(frozen=True)
class Holder:
    """One chain of runs of a task, which asks for slots and holds them."""

    workflow_id: str
    run_id: str
    """The first run id of the chain."""


@dataclass(frozen=True)
class ProbeHolders:
    """Input of the activity `probe_holders`: which of these chains are closed?"""

    holders: list[Holder]


@dataclass(frozen=True)
class LimitOptions:
    """How a LimitWorkflow keeps house; None: as `workflows.options` has it."""

    history_limit_events: int | None = None
    """Continue as new at this many events; None: when the server suggests it."""
    probe_seconds: float | None = None
    """Between two looks whether the holders are still there."""
    idle_seconds: float | None = None
    """How long it stays when nobody holds a slot or waits."""


@dataclass(frozen=True)
class LimitInput:
    """Start of a LimitWorkflow."""

    limit: str
    options: LimitOptions = field(default_factory=LimitOptions)
    state: dict[str, Any] | None = None
    """Carried over a continue-as-new."""


@dataclass(frozen=True)
class ProbeTrials:
    """Input of the activity `probe_trials`: which of these workflows are closed?"""

    workflow_ids: list[str]
    suite_workflow_id: str


@dataclass(frozen=True)
class ClosedTrial:
    """A task that a probe found closed."""

    workflow_id: str
    summary: TrialSummary | None
    """None: it closed without one, terminated by hand or failed in itself."""
    reason: str = ""
    cancelled: bool = False
