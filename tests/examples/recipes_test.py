"""The recipes for clusters: what their commands start, with stand-ins for the cluster around them."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import lockstep
from lockstep.training.launch_options import parse_options

ROOT = os.path.dirname(os.path.abspath(lockstep.__file__))
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")

# What Slurm's commands do, on one machine: every "node" has ports of its own.
SCONTROL = """\
[ "$*" = "show hostnames host[0-1]" ] || exit 9
printf '127.0.0.1:%d\\n127.0.0.1:%d\\n' $FIRST_PORT $SECOND_PORT
"""
SRUN = """\
[ "$1" = --kill-on-bad-exit=1 ] || exit 9
shift
SLURM_NODEID=0 "$@" > node_0 2>&1 & first=$!
SLURM_NODEID=1 "$@" > node_1 2>&1 & second=$!
wait $first && wait $second
"""
PROGRAM = """
import json, os, sys
print(json.dumps([json.loads(os.environ["TF_CONFIG"]), sys.argv[1:]]))
"""


def read(*path):
    with open(os.path.join(EXAMPLES, *path), encoding="utf-8") as file:
        return file.read()


@pytest.fixture(name="ports")
def fixture_ports():
    from lockstep.training.free_ports import free_ports

    with free_ports(2) as ports:
        yield ports


def test_slurm_starts_one_launcher_on_every_node_with_all_nodes_and_its_own_number(tmp_path, ports):
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "digits.py").write_text(PROGRAM, encoding="utf-8")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable,
           "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_JOB_ID": "7", "FIRST_PORT": str(ports[0]),
           "SECOND_PORT": str(ports[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("TF_CONFIG", None)
    finished = subprocess.run(["bash", "-s"], input=read("slurm", "train.sbatch"), cwd=tmp_path, env=env, text=True,
                              capture_output=True, timeout=120, check=False)
    outputs = [(tmp_path / f"node_{node}").read_text(encoding="utf-8") for node in range(2)]
    assert finished.returncode == 0, finished.stderr + "".join(outputs)
    for node, output in enumerate(outputs):
        line = next(line for line in output.splitlines() if line.startswith(f"[worker {node}] [{{"))
        config, arguments = json.loads(line.removeprefix(f"[worker {node}] "))
        assert config == {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
                          "task": {"type": "worker", "index": node}}
        assert arguments == ["--replicas=2", "--model_dir=digits-7"]


def test_two_slurm_jobs_on_one_node_have_ports_of_their_own_below_those_of_the_kernel():
    formula = re.search(r"^port=\$\(\((.*)\)\)$", read("slurm", "train.sbatch"), re.MULTILINE).group(1)
    ports = [eval(formula, {"SLURM_JOB_ID": job}) for job in range(20_000)]
    assert len(set(ports)) == 20_000
    assert 1024 < min(ports) and max(ports) < 32768 - 8


def kubernetes_command():
    return re.search(r"exec lockstep launch (.*?)\n +ports:", read("kubernetes", "train.yaml"), re.DOTALL).group(1)


def test_kubernetes_starts_one_launcher_in_every_pod_with_all_pods_and_its_own_number(monkeypatch):
    monkeypatch.chdir(ROOT)
    for pod in range(2):
        options = parse_options(shlex.split(kubernetes_command().replace("$JOB_COMPLETION_INDEX", str(pod))))
        assert (options.num_workers, options.node_rank, options.max_restarts) == (1, pod, 3)
        assert options.node_addresses() == ["digits-0.digits:12355", "digits-1.digits:12355"]
        assert options.program == ("examples/digits.py", "--replicas=2")


def test_kubernetes_names_and_ports_fit_together():
    text = read("kubernetes", "train.yaml")
    completions, parallelism = re.findall(r"(?:completions|parallelism): (\d+)", text)
    assert completions == parallelism == str(len(set(re.findall(r"digits-\d\.digits", kubernetes_command()))))
    assert set(re.findall(r"(?:[Pp]ort: |digits:)(\d+)", text)) == {"12355"}
    assert set(re.findall(r"(?:job-name: |subdomain: |  name: (?=digits))(\w+)", text)) == {"digits"}
