"""What holds for the repository as a whole: no machine's traces, no broken promises."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conftest import require

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTATION = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)

# In pieces, so that this file is clean too.
MACHINE_PATHS = [
    re.escape(f"{ROOT}/"),
    re.escape(f"{Path.home()}/"),
    "/" + r"home/[a-z]",
    "/" + "Users/[a-z]",
    "/" + "root/",
    "/" + "tmp/pytest-of-",
    r"File \\?" + '"/',  # the traces in saved histories
]
REGISTRY_HOSTS = [
    "python" + r"hosted\.",
    "pypi" + r"\.org",
    "registry" + r"\.npm",
    "deb" + r"\.debian\.",
    "registry-1" + r"\.docker\.",
]


def tracked_files() -> list[Path]:
    """The repository's files, those included that are about to be committed."""
    listed = subprocess.run(
        [
            *(require("git"), "-c", "safe.directory=*", "-C", str(ROOT)),
            *("ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        ],
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip(f"not a git repository: {listed.stderr.strip()}")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def normalised(requirement: str) -> str:
    """The name that a requirement begins with, in the form in which names are compared."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_no_file_names_a_path_of_a_machine_or_the_host_of_a_registry() -> None:
    forbidden = re.compile("|".join([*MACHINE_PATHS, *REGISTRY_HOSTS]))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if (match := forbidden.search(line))
    ]
    assert not found


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    commands = set(re.findall(r"^ *make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"demo", "test"} <= commands
    assert commands <= targets


def test_every_dependency_is_pinned_by_name_and_version_alone() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._]+", line)]
    assert not odd

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["test"],
    ]
    pinned = {normalised(line) for line in lines}
    assert {normalised(requirement) for requirement in needed} <= pinned


@pytest.mark.parametrize("page", DOCUMENTATION, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []
