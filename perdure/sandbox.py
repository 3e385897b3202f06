"""The sandbox in which workflows run: every worker and replayer uses this one."""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import (
    SerializationContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._command_aware_visitor import CommandInfo
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info

PASSED_THROUGH = (
    "workflows",
    "perdure",
    "pydantic",
    "pydantic_core",
    "jsonschema",
    "referencing",
    "rpds",
    "attrs",
)
"""Imported once, not anew in each workflow's sandbox: 1 ms a workflow in place of 62.

Ours keep nothing in variables of modules or classes, which workflows would then share.
"""


def sandbox() -> SandboxedWorkflowRunner:
    """The SDK's sandbox with our modules passed through."""
    return _Runner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    )


class _Runner(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(super().create_instance(det), det)


class _Instance(WorkflowInstance):
    """A sandboxed workflow that answers from outside what needs no sandbox.

    The SDK (1.35) asks four times for each payload in whose context it is converted, and enters
    the sandbox each time: a fifth of the worker's time. Our converters know no contexts, and
    the storage drivers only note for which workflow a payload was stored.
    """

    def __init__(self, inner: WorkflowInstance, details: WorkflowInstanceDetails) -> None:
        self._inner = inner
        info = details.info
        self._stored_for = StorageDriverStoreContext(
            target=StorageDriverWorkflowInfo(
                namespace=info.namespace,
                id=info.workflow_id,
                run_id=info.run_id,
                type=info.workflow_type,
            )
        )

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._inner.activate(act)

    def get_serialization_context(
        self, command_info: CommandInfo | None
    ) -> SerializationContext | None:
        return None

    def get_external_store_context(
        self, command_info: CommandInfo | None
    ) -> StorageDriverStoreContext:
        return self._stored_for

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()
