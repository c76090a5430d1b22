"""Runs `lockstep launch` as a program, and sees to it that it leaves no process behind.

    with Launch(tmp_path, "--workers=2", "train.py") as launch:
        launch.until_printed("[worker 0] ready")
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait() == 130
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import lockstep

DEADLINE_SECS = 30
TAG = "LOCKSTEP_TEST_TAG"

# The launcher without the library's `__init__.py`, which imports TensorFlow and takes seconds to do it.
PROGRAM = """
import importlib.machinery, sys, types
for name in ("lockstep", "lockstep.strategy", "lockstep.training"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__spec__ = importlib.machinery.ModuleSpec(name, None)
    package.__path__ = [sys.argv[1] + name.removeprefix("lockstep").replace(".", "/")]
from lockstep.training.launcher import main
assert "tensorflow" not in sys.modules
sys.exit(main(sys.argv[2:]))
"""
COMMAND = (sys.executable, "-c", PROGRAM, str(Path(lockstep.__file__).parent))


def until(condition):
    """Waits until a function returns something true, and returns it; fails after the deadline."""
    end = time.monotonic() + DEADLINE_SECS
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {DEADLINE_SECS} s in vain"
        threading.Event().wait(0.005)


def processes_with(text):
    """The ids of the running processes whose environment contains a text."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in environment:
                found.append(int(folder.name))
    return found


class Launch:
    """A running launcher. Its output goes to files, so that it never waits for the test to read."""

    def __init__(self, folder, *arguments, command=COMMAND, env=(), stdout=None):
        """Prepares a launcher.

        Args:
          folder: Where it runs.
          *arguments: What stands after `lockstep launch`.
          command: What stands before.
          env: Environment variables besides those of the test.
          stdout: A pipe that its standard output goes to, instead of the file.
        """
        self._stdout = stdout
        self._folder = Path(folder)
        self._command = [*command, *arguments]
        self._tag = f"{TAG}={uuid.uuid4()}"
        inherited = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "COLUMNS")}
        self._env = {**inherited, **dict(env), TAG: self._tag.partition("=")[2]}

    def __enter__(self):
        with open(self._folder / "stdout", "wb") as out, open(self._folder / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._stdout or out,
                stderr=err,
                cwd=self._folder,
                env=self._env,
            )
        return self

    def __exit__(self, kind, error, trace):
        self.process.kill()
        self.process.wait()
        try:
            until(lambda: not self.processes())
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)

    @property
    def out(self):
        """What it has written to standard output."""
        return (self._folder / "stdout").read_text(encoding="utf-8")

    @property
    def err(self):
        """What it has written to standard error."""
        return (self._folder / "stderr").read_text(encoding="utf-8")

    def until_printed(self, *texts):
        """Waits until all the texts stand in its standard output."""
        until(lambda: all(text in self.out for text in texts) or self.process.poll() is not None)
        assert all(text in self.out for text in texts), self.err

    def wait(self):
        """Waits for its end, by itself; returns the exit code."""
        return self.process.wait(DEADLINE_SECS)

    def processes(self):
        """The processes of the launch that still run."""
        return processes_with(self._tag)


def run(folder, *arguments, **options):
    """Runs a launcher to its end; returns its exit code, the lines of its output, and what it wrote to standard error.

    By its end no process may be left: it is not given the time that `Launch` allows one that is killed.
    """
    with Launch(folder, *arguments, **options) as launch:
        code = launch.wait()
        assert not launch.processes()
        return code, launch.out.splitlines(), launch.err
