from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.config import Settings, SettingsError, temporal_configured


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PERDURE_STATE_DIR": "/x/y"}, "/x/y"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/perdure"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/perdure"),
        ({"HOME": "/h"}, "/h/.local/state/perdure"),
        ({"PERDURE_STATE_DIR": "", "HOME": "/h"}, "/h/.local/state/perdure"),
    ],
)
def test_the_state_directory_is_named_or_the_users_own(
    env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")

    assert str(Settings.from_env(env).state.path) == expected


def test_on_macos_the_state_directory_is_where_applications_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    path = Settings.from_env({"HOME": "/h"}).state.path

    assert str(path) == "/h/Library/Application Support/perdure"


def test_settings_have_their_documented_defaults() -> None:
    settings = Settings.from_env({"HOME": "/h"})

    assert settings.queue == "perdure"
    assert settings.retention_days == 90
    assert settings.max_memory_gb is None
    assert settings.port is None
    assert settings.ui_port is None
    assert settings.blobs == settings.state.path / "blobs"
    assert not settings.blobs_shared


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_RETENTION_DAYS", "0"),
        ("PERDURE_RETENTION_DAYS", "ninety"),
        ("PERDURE_RETENTION_DAYS", "1e3"),
        ("PERDURE_RETENTION_DAYS", "٣"),
        ("PERDURE_MAX_MEMORY_GB", "much"),
        ("PERDURE_MAX_MEMORY_GB", "0"),
        ("PERDURE_MAX_MEMORY_GB", "0.0"),
        ("PERDURE_MAX_MEMORY_GB", "-4"),
        ("PERDURE_MAX_MEMORY_GB", "nan"),
        ("PERDURE_MAX_MEMORY_GB", "4GB"),
        ("PERDURE_MAX_MEMORY_GB", "1000001"),
        ("PERDURE_MAX_MEMORY_GB", "٣"),
        ("PERDURE_PORT", "65536"),
        ("PERDURE_PORT", "-1"),
        ("PERDURE_UI_PORT", "8233/tcp"),
        ("PERDURE_BLOBS_SHARED", "maybe"),
        ("PERDURE_BLOBS", "/a/directory"),
        ("PERDURE_BLOBS", "s3://"),
        ("PERDURE_QUEUE", "a queue"),
        ("PERDURE_STATE_DIR", "/a\nb"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_env({"HOME": "/h", name: value})

    assert name in str(raised.value)
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    ("value", "gb"), [("4", 4.0), (" 0.5 ", 0.5), ("1000000", 1e6), ("", None)]
)
def test_the_memory_of_a_host_s_instances_is_a_number_of_gb(value: str, gb: float | None) -> None:
    env = {"HOME": "/h", "PERDURE_MAX_MEMORY_GB": value}

    assert Settings.from_env(env).max_memory_gb == gb


def test_two_equal_ports_are_refused() -> None:
    with pytest.raises(SettingsError, match="PERDURE_PORT and PERDURE_UI_PORT are both 7233"):
        Settings.from_env({"HOME": "/h", "PERDURE_PORT": "7233", "PERDURE_UI_PORT": "7233"})


def test_temporal_is_configured_by_an_address_in_environment_or_file(tmp_path: Path) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.default]\naddress = "a:1"\n[profile.bare]\nnamespace = "n"\n')
    by_file = {"TEMPORAL_CONFIG_FILE": str(file)}

    assert not temporal_configured({})
    assert not temporal_configured({"TEMPORAL_NAMESPACE": "n"})
    assert temporal_configured({"TEMPORAL_ADDRESS": "b:2"})
    assert temporal_configured(by_file)
    with pytest.raises(SettingsError, match=r"'bare'.*without an address"):
        temporal_configured({**by_file, "TEMPORAL_PROFILE": "bare"})
    with pytest.raises(SettingsError, match="absent"):
        temporal_configured({**by_file, "TEMPORAL_PROFILE": "absent"})


def test_a_configuration_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[profile")
    for file in (tmp_path / "bad.toml", tmp_path):
        with pytest.raises(SettingsError, match="TEMPORAL_CONFIG_FILE"):
            temporal_configured({"TEMPORAL_CONFIG_FILE": str(file)})
