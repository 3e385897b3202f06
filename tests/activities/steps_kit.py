"""Steps run by their own functions, with a real host, a real supervisor and real processes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import activities.steps  # noqa: F401  (registers the built-in types)
from activities.host import StepHost
from activities.secrets import WorkerEnvironment
from activities.step_instances import StepInstances
from activities.supervise import Supervisor
from perdure.core.context import new_context
from perdure.core.task import Step
from perdure.messages import RunRef, StepInstance, StepTask
from perdure.steps import Context, StepFailed, registered

RUN = RunRef("task/s/t/1", "run-1", "s", "t", 2)


@dataclass
class Kit:
    """Makes hosts, and runs steps on them."""

    folder: Path
    supervisor: Supervisor
    environment: WorkerEnvironment = field(default_factory=lambda: WorkerEnvironment({"PATH": ""}))
    instances: StepInstances = field(default_factory=StepInstances)
    context: Context = field(default_factory=lambda: Context(**copy.deepcopy(new_context())))
    made: int = 0

    @property
    def workdir(self) -> Path:
        return self.folder / "work"

    def have(self, environment: str, project: str = "p", **ports: int) -> None:
        """Give the steps an instance of an environment, on these ports."""
        self.instances = StepInstances([StepInstance(environment, project, ports)])

    def host(self, document: dict[str, Any], **more: Any) -> StepHost:
        """A host for the next attempt of the step; `step_dir` may be that of an earlier one."""
        self.made += 1
        task = StepTask(RUN, document, 0, 1, attempt=self.made, epoch=0, version=0)
        step_dir = more.pop("step_dir", self.folder / f"{document['id']}.{self.made}")
        step_dir.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {
            "workdir": self.workdir,
            "environment": self.environment,
            "supervisor": self.supervisor,
            "key": f"{RUN.run_id}{self.folder.name}/{document['id']}.{self.made}",
            "context": self.context,
            "instances": self.instances,
        }
        return StepHost(task, Step.from_dict(document), step_dir=step_dir, **settings | more)

    async def run(self, type: str, host: StepHost | None = None, /, **keys: Any) -> Any:
        """Run a step of a built-in type to its end and return its result."""
        document = {"id": "s", "type": type, **keys}
        host = host or self.host(document)
        return await registered()[type].function(document, self.context, host)

    async def fail(self, type: str, host: StepHost | None = None, /, **keys: Any) -> StepFailed:
        """As `run`, for a step that must fail."""
        with pytest.raises(StepFailed) as caught:
            await self.run(type, host, **keys)
        return caught.value
