"""From settings to a connected client, with errors that name the address and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from perdure.config import Settings, SettingsError, temporal_profile
from perdure.errors import PerdureError
from perdure.search_attributes import SEARCH_ATTRIBUTES
from perdure.storage import data_converter

CONNECT_SECONDS = 8.0
"""A service in another continent answers in one; a person waits for more than ten unwillingly."""

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_NAMESPACE = "default"

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


class ConnectionFailed(PerdureError):
    """No usable Temporal service answers at the address."""


async def connect(
    settings: Settings,
    *,
    address: str | None = None,
    role: str = "client",
    runtime: Runtime | None = None,
) -> Client:
    """A client of the embedded server at `address`, or of the service of Temporal's settings.

    It has perdure's data converter, and an identity that tells host, pid and `role`. Raises
    ConnectionFailed within seconds (nothing listens, not Temporal, TLS, permission, namespace),
    SettingsError for settings that cannot be used.
    """
    profile = ClientConfigProfile(address=address)
    if address is None:
        profile = temporal_profile(settings.temporal_env)
    try:
        arguments: dict[str, Any] = {**profile.to_client_connect_config()}
    except OSError as error:  # it reads the certificates that the profile names
        raise SettingsError(
            f"a file of Temporal's TLS settings cannot be read: {error}; correct its path"
        ) from error
    where = arguments.pop("target_host", DEFAULT_ADDRESS)
    namespace = arguments.pop("namespace", DEFAULT_NAMESPACE)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):  # the SDK's own limit ends at the TCP level
            client = await Client.connect(
                where,
                namespace=namespace,
                data_converter=data_converter(settings),
                identity=f"perdure-{role}@{socket.gethostname()}/{os.getpid()}",
                runtime=runtime,
                **arguments,
            )
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=namespace)
            )
    except (RuntimeError, ValueError, OSError, RPCError) as error:
        raise ConnectionFailed(
            explain_failure(error, where, namespace, tls=bool(arguments.get("tls")))
        ) from error
    return client


def explain_failure(error: Exception, address: str, namespace: str, *, tls: bool) -> str:
    """What a failed connection means and what to do, in one line.

    The SDK's core reports as text only (1.35), so its words are what there is to go by.
    """
    text = str(error)
    at = f"the Temporal service at {address}"
    status = error.status if isinstance(error, RPCError) else None
    if isinstance(error, TimeoutError) or status is RPCStatusCode.DEADLINE_EXCEEDED:
        return (
            f"{at} does not answer within {CONNECT_SECONDS:.0f} s; check TEMPORAL_ADDRESS and "
            "the network, and whether it speaks TLS (TEMPORAL_TLS)"
        )
    if status is RPCStatusCode.NOT_FOUND:
        return (
            f"{at} has no namespace {namespace!r}; set TEMPORAL_NAMESPACE, or create it: "
            f"`temporal operator namespace create --namespace {namespace}`"
        )
    if status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED) or any(
        word in text for word in ("PermissionDenied", "Unauthenticated")
    ):
        return (
            f"{at} refuses access to the namespace {namespace!r}; check TEMPORAL_API_KEY, the "
            "client certificate (TEMPORAL_TLS_CLIENT_CERT_PATH) and what they may do"
        )
    if isinstance(error, ValueError) or "invalid target" in text:
        return f"{address!r} is not an address ({text}); TEMPORAL_ADDRESS is host:port"
    if "dns error" in text:
        return f"{at}: there is no host of this name; check TEMPORAL_ADDRESS"
    if "tcp connect error" in text:
        return (
            f"nothing listens at {address}; start the Temporal service there, correct "
            "TEMPORAL_ADDRESS, or unset it to use the embedded server"
        )
    if any(word in text for word in ("InvalidMessage", "InvalidContentType", "ertificate", "tls")):
        remedy = "it may not speak TLS: unset TEMPORAL_TLS" if tls else "set TEMPORAL_TLS=true"
        return f"{at}: TLS failed ({_innermost(text)}); {remedy}, or correct TEMPORAL_TLS_*"
    hint = "" if tls else ", or it wants TLS: set TEMPORAL_TLS=true"
    return (
        f"what answers at {address} is not a Temporal service ({_innermost(text)}); check "
        f"TEMPORAL_ADDRESS{hint}"
    )


def _innermost(text: str) -> str:
    """The telling end of the core's nested message."""
    if 'message: "' in text:
        text = text.split('message: "')[-1].split('"')[0]
    return text.strip()[-160:] or "no reason given"


async def ensure_search_attributes(client: Client) -> bool:
    """Whether the server has our search attributes; adds them where it may.

    False: they are missing and may not be added (by right, or by their number), or one has
    another type. Runs work without; only the server's own lists tell less.
    """
    listing = ListSearchAttributesRequest(namespace=client.namespace)
    wanted = {name: _TYPES[kind] for name, kind in SEARCH_ATTRIBUTES.items()}
    for may_add in (True, True, False):
        try:
            present = (
                await client.operator_service.list_search_attributes(listing)
            ).custom_attributes
            missing = {name: kind for name, kind in wanted.items() if name not in present}
            if not missing:
                return all(present[name] == kind for name, kind in wanted.items())
            if may_add:
                await client.operator_service.add_search_attributes(
                    AddSearchAttributesRequest(
                        namespace=client.namespace, search_attributes=missing
                    )
                )
        except RPCError as error:
            # Another worker may have added them at the same time: look again.
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                return False
    return False
