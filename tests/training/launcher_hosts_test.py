"""`lockstep launch --nodes` on two hosts, until the network between them fails: testing/two_hosts.sh."""

import json
import os
import re
import shlex
import subprocess

import pytest

from testing.launches import COMMAND
from testing.workers import PROGRAMS

OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
SCRIPT = PROGRAMS.parent / "testing" / "two_hosts.sh"
DEADLINE_SECS = 120


def refusal():
    """Why this system does not let two hosts be made, "" if it does."""
    try:
        tried = subprocess.run([*OWN_NETWORK, "ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1"],
                               capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        return str(error)
    return tried.stderr.strip()


def test_workers_of_two_hosts_train_together_and_each_says_so_when_the_other_cannot_be_reached(tmp_path):
    reason = refusal()
    if reason:
        pytest.skip(f"two network namespaces, without the rights of root, with a cable between them: {reason}")
    launch = tmp_path / "launch.sh"
    launch.write_text(f"exec {' '.join(map(shlex.quote, COMMAND))} --workers=1 --nodes=10.77.0.1,10.77.0.2 "
                      f"--node-rank=$1 {PROGRAMS / 'two_hosts.py'} fifo\n", encoding="utf-8")
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1",
           "PYTHONPATH": os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])}
    env.pop("TF_CONFIG", None)
    finished = subprocess.run([*OWN_NETWORK, "sh", str(SCRIPT), "fifo", "sh", str(launch)], cwd=tmp_path, env=env,
                              capture_output=True, text=True, timeout=DEADLINE_SECS, check=False)
    outputs = [(tmp_path / f"host_{host}").read_text(encoding="utf-8") for host in range(2)]
    assert finished.stdout == "host 0: exit code 1\nhost 1: exit code 1\n", finished.stderr + "".join(outputs)
    for host, output in enumerate(outputs):
        assert f'[worker {host}] RESULT {json.dumps(["sum", 3.0])}' in output.splitlines()
        other = rf"worker {1 - host} \(10\.77\.0\.{2 - host}:12355\)"
        assert re.search(rf"PeerError: {other} cannot be reached any more, \d+\.\d s after its last sign of life \(\["
                         r"Errno \d+\] .*\): its machine is down, or the network is\.", output), output
