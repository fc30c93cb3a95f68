"""What the tests of Ray Serve share: two replicas of the embedded model on a Ray of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from served import data_url, png, wait_until

ROOT = Path(__file__).resolve().parents[1]
KEY = "open sesame"
QUESTION = "how many circles are there?"


@contextmanager
def running(*flags: str) -> Iterator[Cluster]:
    """Two replicas that answer; whatever of them is left is killed."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(folder, flags)
        try:
            cluster.wait()
            yield cluster
        finally:
            cluster.http.close()
            for pid in cluster.processes():
                os.kill(pid, signal.SIGKILL)
            cluster.process.wait()


class Cluster:
    """The command in a process of its own, and a client of it. All of its processes know `folder`."""

    def __init__(self, folder: str, flags: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.folder, self.log = folder, Path(folder, "log")
        env = {
            "RAY_TMPDIR": folder,
            "HOME": folder,  # where Ray keeps the token of its own ports
            "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's word for: loopback only
        }
        command = [sys.executable, "-m", "photon.api.ray_serve", "--replicas", "2", "--port", str(port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--api-key", KEY, *flags], env=os.environ | env, cwd=ROOT, stdout=log, stderr=log
            )
        self.url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def wait(self) -> None:
        """Until the replicas answer, or the command gave up."""
        wait_until(lambda: "2 replicas at" in self.log.read_text() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.log.read_text()

    def ask(self, seed: int, **more: Any) -> httpx.Response:
        """A question about picture number `seed`."""
        body = {"question": QUESTION, "image_url": data_url(png(seed)), **more}
        return self.http.post("/v1/query", json=body)

    def count(self, series: str) -> dict[str, float]:
        """A series of /metrics, by replica."""
        text = self.http.get("/metrics").text
        found = re.findall(rf'^{series}{{.*replica="(\w+)".*}} (\S+)$', text, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    def processes(self) -> set[int]:
        """Of the command and of all that came of it and lives."""
        return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._owns(path)}

    def _owns(self, path: Path) -> bool:
        try:
            return f"RAY_TMPDIR={self.folder}\0".encode() in path.read_bytes()
        except OSError:  # it has ended
            return False

    def process_of(self, replica: str) -> int:
        """The one that writes the replica's log."""
        for pid in self.processes():
            for file in Path(f"/proc/{pid}/fd").iterdir():
                if file.readlink().name.endswith(f"_{replica}.log"):
                    return pid
        raise AssertionError(f"no process has the log of {replica} open")
