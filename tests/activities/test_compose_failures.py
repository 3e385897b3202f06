"""What compose says when it fails is told apart: a port, a network, an image, a file."""

from __future__ import annotations

import pytest

from activities.compose_failures import failure_of

SERVICES = {"a": "shop/a:1", "b": "no.such.host/img:1", "db": None}

NOISE = [
    'time="2024-05-01T10:00:00Z" level=warning msg="The \\"X\\" variable is not set."',
    " Network p_default Creating ",
    " Network p_default Created ",
    " Container p-a-1 Creating ",
    " Container p-a-1 Created ",
    " Container p-a-1 Starting ",
]


def told(*lines: str):  # type: ignore[no-untyped-def]
    return failure_of([*NOISE, *lines], "p", SERVICES)


@pytest.mark.parametrize(
    "said",
    [
        "Error response from daemon: driver failed programming external connectivity on endpoint "
        "p-b-1 (3e43): Bind for 0.0.0.0:18099 failed: port is already allocated",
        "Error response from daemon: driver failed programming external connectivity on endpoint "
        "p-b-1 (3e43): Error starting userland proxy: listen tcp4 0.0.0.0:18099: bind: address "
        "already in use",
        "Error response from daemon: driver failed programming external connectivity on endpoint "
        "p-b-1 (3e43): Error starting userland proxy: listen tcp6 [::]:18099: bind: address "
        "already in use",
        "Error response from daemon: failed to set up container networking: driver failed "
        "programming external connectivity on endpoint p-b-1 (3e43): failed to bind host port for "
        "0.0.0.0:18099:172.20.0.2:80/tcp: address already in use",
        "Error response from daemon: Ports are not available: exposing port TCP 0.0.0.0:18099 -> "
        "127.0.0.1:0: listen tcp 0.0.0.0:18099: bind: address already in use (p-b-1)",
    ],
)
def test_a_port_that_somebody_has_is_named_with_its_service(said: str) -> None:
    failure = told(said)
    assert failure.ports == (18099,)
    assert failure.service == "b"
    assert failure.reason == said
    assert not failure.is_final


@pytest.mark.parametrize(
    "said",
    [
        "failed to create network p_default: Error response from daemon: could not find an "
        "available, non-overlapping IPv4 address pool among the defaults to assign to the network",
        "Error response from daemon: all predefined address pools have been fully subnetted",
    ],
)
def test_an_engine_without_networks_left_is_crowded(said: str) -> None:
    assert told(said).is_crowded
    assert not told(said).is_final


@pytest.mark.parametrize(
    "said",
    [
        'Error response from daemon: Get "https://no.such.host/v2/": dial tcp: lookup '
        "no.such.host: no such host (no.such.host/img:1)",
        "Error response from daemon: pull access denied for no.such.host/img:1, repository does "
        "not exist or may require 'docker login'",
        "Error response from daemon: manifest for no.such.host/img:1 not found: manifest unknown",
        "Error response from daemon: No such image: no.such.host/img:1",
    ],
)
def test_an_image_that_is_not_to_be_had_is_final(said: str) -> None:
    """C02."""
    failure = told(said)
    assert failure.is_final
    assert failure.is_image_missing
    assert failure.service == "b"


def test_a_registry_that_is_slow_is_not() -> None:
    failure = told('Get "https://host/v2/": net/http: TLS handshake timeout')
    assert not failure.is_final


@pytest.mark.parametrize(
    "said",
    [
        "validating compose.yml: services.a.imag additional properties 'imag' not allowed",
        "failed to parse compose.yml: yaml: line 3: did not find expected node content",
        'service "b" depends on undefined service "c": invalid compose project',
    ],
)
def test_a_file_that_is_none_is_final(said: str) -> None:
    assert told(said).is_final


@pytest.mark.parametrize(
    ("said", "service"),
    [
        ('service "db" didn\'t complete successfully: exit 3', "db"),
        ("dependency failed to start: container p-db-1 is unhealthy", "db"),
        ("dependency failed to start: container p_a_1 exited (1)", "a"),
        ("something else went wrong", None),
    ],
)
def test_the_service_is_the_one_that_the_last_line_names(said: str, service: str | None) -> None:
    assert told(said).service == service
    assert told(said).reason == said


def test_a_taken_name_is_told() -> None:
    said = (
        'Error response from daemon: Conflict. The container name "/p-a-1" is already in use by '
        'container "5f2". You have to remove (or rename) that container.'
    )
    assert told(said).is_name_taken


def test_nothing_but_progress_is_no_reason() -> None:
    assert told().reason == "compose failed and said nothing"
    assert told().lines == []
