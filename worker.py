"""The worker process: settings in, workflows and activities listed, run.

`python worker.py` is `perdure worker`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import temporalio.client
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

import activities
import workflows
from activities.backend import Backends
from activities.binding import Binding
from activities.carry import Carrying
from activities.compensate import Compensations
from activities.compose import ComposeBackend
from activities.contexts import Contexts
from activities.hosts import HostBeats
from activities.instances import Instances
from activities.jobs import Jobs
from activities.jobs_endpoint import JobsEndpoint
from activities.leases import PREFIX_VARIABLE, Leases
from activities.limits import Slots
from activities.missing import MissingRecords
from activities.noted_ports import noted_below
from activities.ports import FreePorts, PortProbe, port_range
from activities.process import ProcessBackend
from activities.results import Results
from activities.secrets import WorkerEnvironment
from activities.step import Steps
from activities.suite_results import SuiteResults
from activities.supervise import Supervisor
from activities.threads import StepThreads
from perdure.errors import PerdureError
from perdure.jobs import JobsApi
from perdure.messages import LimitOptions
from perdure.names import (
    control_queue,
    instances_queue,
    jobs_queue,
    shared_queue,
    steps_queue,
    undo_queue,
)
from perdure.pool_messages import PoolTimes
from perdure.sandbox import sandbox
from perdure.server_id import server_id
from workflows.instance import InstanceWorkflow
from workflows.job import JobWorkflow
from workflows.limit import LimitWorkflow
from workflows.pool import PoolWorkflow
from workflows.suite import SuiteWorkflow
from workflows.task import TaskWorkflow

WORKFLOWS: Sequence[type] = (TaskWorkflow, SuiteWorkflow, JobWorkflow)
SHARED_WORKFLOWS: Sequence[type] = (LimitWorkflow, PoolWorkflow)
"""Those that serve all suites of a server."""

BUILD = "perdure"
"""What workers say they run, which is only shown. The SDK's own answer is a digest of all that was
imported, and an eighth of a worker's start."""

HOST_WORKFLOWS: Sequence[type] = (InstanceWorkflow,)
"""Those that look after what is on a host."""

INSTANCE_SLOTS = 1_000
"""Activities at once on a host's instances queue; each instance that is up takes one, which only
waits."""

CONTROL_SLOTS = 1_000
"""Activities at once on a control queue: compensations may take minutes, and words to limits and
pools, which take none, must not wait for them."""

BEAT_THROTTLE = timedelta(seconds=0.5)
"""The SDK's own throttle would make a cancel arrive after 4 to 7 s."""

JOB_BEAT_THROTTLE = timedelta(seconds=0.2)
"""What a job has printed last is seen by its beats."""

STICKY_TIMEOUT = timedelta(seconds=1)
"""How long a resume or a query waits for a dead worker; the SDK's default is 10 s."""


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker serves, and with what."""

    queue: str
    host: str
    runs: Path
    """Where runs have their directories."""
    results: Path
    """Where results go when a suite does not say."""
    single_host: bool = True
    """False: tasks that were bound to this host find their steps on a queue of its own."""
    shared_queue: str | None = None
    """Where work for all suites of the server is done; None: the `shared_queue` of `queue`. All
    workers of a server must name the same."""
    limits: LimitOptions = field(default_factory=LimitOptions)
    """How the named limits are kept that tasks of this worker are the first to need."""
    pools: PoolTimes = field(default_factory=PoolTimes)
    """The same for pools."""
    environment: WorkerEnvironment = field(default_factory=WorkerEnvironment)
    instances: Path | None = None
    """Where environments' instances have their folders; None: `instances` beside `runs`. Workers
    of one host name the same."""
    max_instances: int | None = None
    """Instances at a time on this host; None: as many as memory and ports allow."""
    max_memory_gb: float | None = None
    """Memory that they may need together; None: as much as the machine has."""
    step_slots: int = 200
    """Steps at once."""
    job_slots: int = 64
    """Background jobs at once; more of them wait."""
    drain: timedelta = timedelta(seconds=10)
    """After SIGTERM, how long running steps may go on before they are handed back."""


class ShadowedPackage(PerdureError):
    """Another distribution's package stands where ours should."""


def check_packages() -> None:
    """Make sure that `workflows` and `activities` are ours.

    Their names are short, and other distributions install the same ones.
    Raises ShadowedPackage naming the package in the way.
    """
    here = Path(__file__).resolve().parent
    for package in (workflows, activities):
        found = Path(package.__file__ or "?").resolve().parent
        if found.parent != here:
            raise ShadowedPackage(
                f"package {package.__name__!r} comes from {found}, which is not perdure's; "
                f"uninstall what put it there, or start from another directory"
            )


@asynccontextmanager
async def serving(client: temporalio.client.Client, options: WorkerOptions) -> AsyncIterator[None]:
    """Serve the queues of `options` until the block is left, then drain."""
    check_packages()
    async with AsyncExitStack() as stack:
        supervisor = await Supervisor.start()
        stack.push_async_callback(supervisor.close)
        threads = StepThreads(options.step_slots)
        stack.callback(threads.close)
        contexts = Contexts(client)
        results = Results(client, options.runs, options.results, contexts)
        suites = SuiteResults(options.results, await server_id(client))
        shared = options.shared_queue or shared_queue(options.queue)
        slots = Slots(client, shared, options.limits)
        compose = ComposeBackend(options.environment)
        backends = Backends(
            compose=compose,
            process=ProcessBackend(options.environment),
            root=options.instances or options.runs.with_name("instances"),
            environment=options.environment,
        )
        probe, ports = PortProbe(compose.cli.published_ports), port_range(options.environment.get)
        free_ports = FreePorts(probe, ports, lambda: noted_below(backends.root))
        endpoint = JobsEndpoint()
        stack.callback(endpoint.close)
        steps = Steps(client, options.host, options.runs, options.environment, supervisor,
                      threads, contexts, backends, free_ports, endpoint=endpoint,
                      jobs=JobsApi(client, options.results))  # fmt: skip
        undoing = Compensations(options.host, options.runs, options.environment, supervisor,
                                threads, contexts, backends)  # fmt: skip
        jobs = Jobs(client, options.host, options.runs, options.results, options.environment,
                    supervisor, backends)  # fmt: skip
        carrying = Carrying(options.host, options.runs)
        instances = Instances(client, backends, probe)
        beats = HostBeats(
            client,
            options.host,
            shared,
            capacity=options.max_instances,
            max_memory_gb=options.max_memory_gb,
            ports=ports,
        )
        leases = Leases(
            client,
            shared,
            options.host,
            tell=beats.tell,
            times=options.pools,
            prefix=options.environment.get(PREFIX_VARIABLE),
        )
        common: dict[str, Any] = {
            "deployment_config": WorkerDeploymentConfig(
                WorkerDeploymentVersion(BUILD, BUILD), use_worker_versioning=False
            ),
            "max_heartbeat_throttle_interval": BEAT_THROTTLE,
            "default_heartbeat_throttle_interval": BEAT_THROTTLE,
            "graceful_shutdown_timeout": options.drain,
        }
        at_work = [
            Worker(
                client,
                task_queue=options.queue,
                workflows=WORKFLOWS,
                activities=[
                    steps.run_step,
                    results.finish_task,
                    suites.write_suite,
                    MissingRecords(client, results).write_missing,
                    Binding(options.host).bind_host,
                    carrying.carry_work,
                    leases.acquire_lease,
                    leases.release_lease,
                    leases.reset_lease,
                    leases.set_demand,
                ],
                workflow_runner=sandbox(),
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
                max_concurrent_activities=options.step_slots,
                **common,
            ),
            Worker(
                client,
                task_queue=control_queue(options.queue),
                activities=[
                    results.probe_trials,
                    slots.ask_slot,
                    slots.release_slot,
                    slots.remind_limits,
                    leases.acquire_lease,
                    leases.release_lease,
                    leases.see_lease,
                    leases.remind_pool,
                    leases.reset_lease,
                    leases.set_demand,
                    undoing.compensate_step,
                    jobs.interrupt_job,
                    jobs.stop_jobs,
                ],
                max_concurrent_activities=CONTROL_SLOTS,
                **common,
            ),
            Worker(
                client,
                task_queue=jobs_queue(options.queue, None if options.single_host else options.host),
                activities=[jobs.run_job],
                max_concurrent_activities=options.job_slots,
                # Jobs are few and long, and most workers have none.
                max_concurrent_activity_task_polls=1,
                **common
                | {
                    "max_heartbeat_throttle_interval": JOB_BEAT_THROTTLE,
                    "default_heartbeat_throttle_interval": JOB_BEAT_THROTTLE,
                },
            ),
            Worker(
                client,
                task_queue=shared,
                workflows=SHARED_WORKFLOWS,
                activities=[slots.probe_holders, leases.end_instances],
                workflow_runner=sandbox(),
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
                # A process serves few limits, and many processes share this queue.
                max_concurrent_workflow_task_polls=2,
                max_concurrent_activity_task_polls=1,
                max_concurrent_activities=4,
                **common,
            ),
            Worker(
                client,
                task_queue=instances_queue(shared, options.host),
                workflows=HOST_WORKFLOWS,
                activities=[
                    instances.prepare_environment,
                    instances.start_instance,
                    instances.reset_instance,
                    instances.check_instance,
                    instances.watch_instance,
                    instances.stop_instance,
                    instances.sweep_host,
                    leases.answer_pool,
                ],
                workflow_runner=sandbox(),
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
                # Most workers look after few instances, or none.
                max_concurrent_workflow_task_polls=2,
                max_concurrent_activity_task_polls=2,
                max_concurrent_activities=INSTANCE_SLOTS,
                # Watches end with the worker only, and all else goes on where another takes it up.
                **{**common, "graceful_shutdown_timeout": timedelta(0)},
            ),
        ]
        if not options.single_host:
            at_work.append(
                Worker(
                    client,
                    task_queue=steps_queue(options.queue, options.host),
                    activities=[steps.run_step, results.finish_task, carrying.carry_work],
                    max_concurrent_activities=options.step_slots,
                    **common,
                )
            )
            at_work.append(
                Worker(
                    client,
                    task_queue=undo_queue(options.queue, options.host),
                    activities=[undoing.compensate_step, jobs.interrupt_job],
                    max_concurrent_activities=CONTROL_SLOTS,
                    # A host rolls back now and then.
                    max_concurrent_activity_task_polls=1,
                    **common,
                )
            )
        for worker in at_work:
            await stack.enter_async_context(worker)
        await stack.enter_async_context(beats.beating())
        yield


def main() -> None:
    """`perdure worker`."""
    from perdure.cli import main as perdure

    sys.argv[1:1] = ["worker"]
    perdure()


if __name__ == "__main__":
    main()
