"""A docker engine of the test's own: it can be restarted, and nobody else's containers are seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from secrets import randbelow, token_hex

from tests.cli.support import ROOT
from tests.conftest import absent, find_program

START_SECONDS = 60.0
IMAGES = ROOT / "examples" / "shop" / "build.sh"


class OwnEngine:
    """`dockerd` with its own directories, socket and networks.

    It leaves the machine's packet filter alone, so published ports are served by docker's proxy,
    and containers of one network cannot reach each other beside another engine's rules: projects
    of one service are what it is good for.
    """

    def __init__(self, networks: str | None = None) -> None:
        """`networks`: out of which its networks are cut; None: docker's usual ones.

        With `networks` it must not be started twice: a dockerd that finds its earlier state then
        removes docker0, which is the machine's own engine's.
        """
        program = find_program("dockerd")
        if program is None or find_program("busybox") is None or find_program("ip") is None:
            absent("docker", "dockerd, busybox or ip is absent")
        if os.geteuid() != 0:
            absent("docker", "an engine of the test's own needs root")
        self._program, self._networks = program, networks
        # Not below pytest's directories: the path of a socket has 107 letters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-engine-"))
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        # With no bridge at all, dockerd would remove that of the machine's own engine.
        self._bridge = f"pd{token_hex(4)}"
        self._address = f"10.214.{randbelow(256)}.1/24"

    @property
    def variables(self) -> dict[str, str]:
        """What makes `docker` and perdure use this engine."""
        return {"DOCKER_HOST": f"unix://{self._folder}/socket"}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._make_bridge()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    *("--host", self.variables["DOCKER_HOST"], "--pidfile", self._folder / "pid"),
                    *("--data-root", self._folder / "data", "--exec-root", self._folder / "exec"),
                    *("--iptables=false", "--ip6tables=false", "--bridge", self._bridge),
                    *(("--default-address-pool", self._networks) if self._networks else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._call("ps").returncode:
            ended = self._process.poll() is not None or time.monotonic() > deadline
            if ended:
                absent("docker", f"no engine of the test's own: {self._log.read_text()[-1000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it; its containers end with it."""
        assert self._process
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(START_SECONDS)
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Leave nothing of it."""
        if self._process and self._process.poll() is None:
            self.sweep()
            self.stop()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_bridge(self) -> None:
        for words in (
            ("link", "add", self._bridge, "type", "bridge"),
            ("address", "replace", self._address, "dev", self._bridge),
            ("link", "set", self._bridge, "up"),
        ):
            done = subprocess.run(["ip", *words], capture_output=True, text=True)
            if done.returncode and "exists" not in done.stderr:
                absent("docker", f"no bridge for an engine of its own: {done.stderr.strip()}")

    def build_images(self) -> None:
        """Have the images of the example among its own."""
        built = subprocess.run(
            ["sh", str(IMAGES)],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert built.returncode == 0, built.stderr

    def sweep(self) -> None:
        """Remove every container, network and volume, for the next test."""
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *containers)
        if networks := self._made_networks("{{.ID}}"):
            self.docker("network", "rm", *networks)
        if volumes := self.docker("volume", "ls", "--quiet").split():
            self.docker("volume", "rm", *volumes)

    def left(self) -> list[str]:
        """Every container, whatever its state, and every network and volume somebody has made."""
        found = self.docker("ps", "--all", "--format", "{{.Names}} {{.Status}}").splitlines()
        found += self._made_networks("{{.Name}}")
        return found + self.docker("volume", "ls", "--format", "{{.Name}}").split()

    def projects(self) -> dict[str, str]:
        """Ids of the containers that run, by compose project."""
        lines = self.docker("ps", "--no-trunc", "--format", "{{json .}}").splitlines()
        containers = [json.loads(line) for line in lines]
        label = '{{index .Config.Labels "com.docker.compose.project"}}'
        return {
            self.docker("inspect", "--format", label, each["ID"]).strip(): each["ID"]
            for each in containers
        }

    def docker(self, *words: str) -> str:
        """What a call of docker prints; a failed call fails the test."""
        done = self._call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _made_networks(self, form: str) -> list[str]:
        return self.docker("network", "ls", "--filter", "type=custom", "--format", form).split()

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
