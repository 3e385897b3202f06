"""What one start of a job has of its machine: its variables, secrets and instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activities.backend import Backends
from activities.host import StepHost
from activities.places import RunPlace
from activities.secrets import SecretFile, WorkerEnvironment
from activities.step_instances import StepInstances
from activities.supervise import Supervisor
from perdure.core.context import FIELDS, new_context
from perdure.core.redaction import restore
from perdure.core.task import Step
from perdure.job_messages import JobTask
from perdure.messages import StepInstance, StepTask
from perdure.payloads import adapter
from perdure.steps import Context


class JobHost(StepHost):
    """As of a step of the task, and with `PERDURE_JOB_ID`; nothing is collected from a job."""

    exec_id = ""
    has_context = False
    """Whether the job is given the task's context."""

    @classmethod
    def of(
        cls,
        task: JobTask,
        place: RunPlace,
        key: str,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        backends: Backends | None,
    ) -> JobHost:
        """That of one start of a job. Raises PerdureError if the run's secrets cannot be read."""
        job = task.job
        step = {"id": job.origin.step or job.exec_id, "type": "background", "env": job.spec.env}
        secrets = SecretFile(place.secrets).load()
        made = cls(
            StepTask(job.run, step, 0, 0, attempt=task.attempt, epoch=0, version=0),
            Step.from_dict(step),
            step_dir=place.job(job.exec_id),
            workdir=place.work_after(job.restarts),
            environment=environment,
            supervisor=supervisor,
            key=key,
            context=Context(**_fields(restore(job.context, secrets))),
            secrets=secrets,
            instances=StepInstances(
                [adapter(StepInstance).validate_python(known) for known in job.instances], backends
            ),
            folder=Path(job.folder) if job.folder else None,
        )
        made.exec_id = job.exec_id
        made.has_context = job.context is not None
        return made

    @property
    def call_context(self) -> dict[str, Any]:
        """The context, as an `entrypoint` is called with it."""
        return {name: getattr(self._context, name) for name in FIELDS}

    def write_context(self) -> None:
        """Make the file that `PERDURE_CONTEXT` names, if the job is given a context."""
        if self.has_context:
            self._write_context()

    def own_variables(self) -> dict[str, str]:
        """Those of a step that make sense for a job, and its id."""
        variables = super().own_variables()
        left_out = {"PERDURE_OUTPUT", "PERDURE_ARTIFACTS", "PERDURE_JOBS"}
        if not self.has_context:
            left_out.add("PERDURE_CONTEXT")
        kept = {name: value for name, value in variables.items() if name not in left_out}
        return {**kept, "PERDURE_JOB_ID": self.exec_id}


def _fields(context: Any) -> dict[str, Any]:
    """The context's fields, and nothing else that may stand there."""
    given = context if isinstance(context, dict) else {}
    return {**new_context(), **{name: given[name] for name in FIELDS if name in given}}
