"""Tests of `lockstep launch`: what workers find, how their output is shown, and how a failure is told."""

import json
import os
import re
import signal

import pytest

from lockstep.training.free_ports import free_ports, is_free
from testing.launches import Launch, run

SHOW = """
import json, os, sys
names = sys.argv[1].split(",")
print(json.dumps([os.environ.get(name) for name in names]), flush=True)
"""
# Sets `rank`, and `PeerError` with the name of Lockstep's own.
START = """
import json, os, pathlib, signal, sys
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
PeerError = type("PeerError", (RuntimeError,), {"__module__": "lockstep.collective.errors"})
"""


@pytest.fixture(name="script")
def fixture_script(tmp_path):
    """Writes the script that the workers run."""

    def write(text, name="train.py"):
        (tmp_path / name).write_text(START + text, encoding="utf-8")
        return name

    return write


def shown(tmp_path, script, names, *arguments, **options):
    """The values of environment variables in each worker, by worker."""
    code, lines, errors = run(tmp_path, *arguments, script(SHOW), names, **options)
    assert code == 0, errors
    found = dict(re.fullmatch(r"\[worker (\d+)\] (.*)", line).groups() for line in lines)
    return [json.loads(found[rank]) for rank in sorted(found, key=int)]


def test_each_worker_finds_its_place_in_one_cluster(tmp_path, script):
    configs = [json.loads(config) for config, in shown(tmp_path, script, "TF_CONFIG", "--workers=3")]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert all(config["cluster"] == {"worker": addresses} for config in configs)
    assert len(set(addresses)) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)


def test_cores_are_shared_out_and_what_the_user_set_stays(tmp_path, script):
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    names = "OMP_NUM_THREADS,TF_NUM_INTRAOP_THREADS,TF_NUM_INTEROP_THREADS,PYTHONUNBUFFERED,LOCKSTEP_RESTART_COUNT"
    values = shown(tmp_path, script, names, "--workers=2", env={"TF_NUM_INTRAOP_THREADS": "7"})
    assert values == [[share, "7", share, "1", "0"]] * 2


def test_gpus_are_shared_out(tmp_path, script):
    values = shown(tmp_path, script, "CUDA_VISIBLE_DEVICES", "--workers=2", env={"CUDA_VISIBLE_DEVICES": "3,5"})
    assert values == [["3"], ["5"]]


def test_more_workers_than_gpus_is_said(tmp_path, script):
    code, lines, errors = run(tmp_path, "--workers=2", script(SHOW), "CUDA_VISIBLE_DEVICES",
                              env={"CUDA_VISIBLE_DEVICES": "3"})
    assert code == 0
    assert sorted(lines) == ['[worker 0] ["3"]', '[worker 1] [""]']
    assert errors == ("lockstep launch: 2 workers for 1 GPUs: the last 1 get none and train on CPUs, and all wait for "
                      "them. --workers=1 gives every worker a GPU.\n")


def test_everything_after_the_script_is_the_scripts(tmp_path, script):
    name = script("print(sys.argv[1:])")
    code, lines, _ = run(tmp_path, "--workers=1", name, "--any", "--workers=9", "-m", "--", "--help", "x y")
    assert (code, lines) == (0, ["[worker 0] ['--any', '--workers=9', '-m', '--', '--help', 'x y']"])


def test_a_module_runs_by_its_name(tmp_path, script):
    (tmp_path / "package").mkdir()
    script("print(__name__, sys.argv[1:])", "package/module.py")
    code, lines, errors = run(tmp_path, "--workers=1", "-m", "package.module", "--flag")
    assert (code, lines, errors) == (0, ["[worker 0] __main__ ['--flag']"], "")


def test_output_and_errors_stay_apart_and_carry_the_workers_number(tmp_path, script):
    name = script("print('out', rank)\nprint('err', rank, file=sys.stderr)")
    code, lines, errors = run(tmp_path, "--workers=2", name)
    assert code == 0
    assert sorted(lines) == ["[worker 0] out 0", "[worker 1] out 1"]
    assert sorted(errors.splitlines()) == ["[worker 0] err 0", "[worker 1] err 1"]


def test_the_log_folder_gets_each_workers_output_without_prefix_and_keeps_what_it_had(tmp_path, script):
    name = script("sys.stdout.write(f'worker {rank}\\rdone\\n')")
    for _ in range(2):
        assert run(tmp_path, "--workers=2", "--log-dir=logs/today", name)[0] == 0
    for rank in range(2):
        log = (tmp_path / "logs" / "today" / f"worker_{rank}.log").read_bytes()
        assert log == b"worker %d\rdone\n" % rank * 2


def test_the_workers_have_no_standard_input(tmp_path, script):
    assert run(tmp_path, "--workers=1", script("print(repr(sys.stdin.read()))"))[1] == ["[worker 0] ''"]


def test_the_first_failure_is_told_last_with_its_traceback_and_its_exit_code(tmp_path, script):
    name = script("""
if rank == 1:
    try:
        raise KeyError("earlier")
    except KeyError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    raise ValueError("two\\nlines")
""")
    code, _, errors = run(tmp_path, "--workers=2", name)
    assert code == 1
    number = len(START.splitlines()) + 7
    assert errors.split("lockstep launch: worker 1 failed first: ")[1] == (
        f'exit code 1, ValueError:\nTraceback (most recent call last):\n  File "{tmp_path}/train.py", line {number}, '
        'in <module>\n    raise ValueError("two\\nlines")\nValueError: two\nlines\n')


def test_an_exit_code_is_passed_on_with_the_last_lines_where_there_is_no_traceback(tmp_path, script):
    code, _, errors = run(tmp_path, "--workers=1", script("sys.stderr.write('no disk\\n')\nsys.exit(42)"))
    assert (code, errors) == (
        42, "[worker 0] no disk\nlockstep launch: worker 0 failed first: exit code 42:\nno disk\n")


def test_a_worker_that_says_nothing_is_named_too(tmp_path, script):
    code, _, errors = run(tmp_path, "--workers=1", script("sys.exit(3)"))
    assert (code, errors) == (3, "lockstep launch: worker 0 failed first: exit code 3. It wrote nothing to standard "
                                 "error.\n")


@pytest.mark.parametrize("name, more", [
    ("SIGSEGV", ""), ("SIGKILL", " (the kernel sends it when memory runs out)")])
def test_death_by_a_signal_is_named(tmp_path, script, name, more):
    code, _, errors = run(tmp_path, "--workers=1", script(f"os.kill(os.getpid(), signal.{name})"))
    assert code == 128 + signal.Signals[name]
    assert errors == (f"lockstep launch: worker 0 failed first: killed by {name}{more}. It wrote nothing to standard "
                      "error.\n")


# Worker 0 fails first, then worker 1, once the launcher has noticed the end of worker 0.
ONE_AFTER_THE_OTHER = """
pid = pathlib.Path("pid")
if rank == 0:
    pathlib.Path("writing").write_text(str(os.getpid()))
    os.rename("writing", pid)
    raise {first}
while not pid.exists() or os.path.exists("/proc/" + pid.read_text()):
    pass
raise {second}
"""


@pytest.mark.parametrize("first, second, cause", [
    ("PeerError('worker 1 is gone')", "ValueError(7)", 1),
    ("PeerError", "ValueError(7)", 1),
    ("ValueError(7)", "PeerError('worker 0 is gone')", 0),
    ("ValueError(7)", "KeyError(8)", 0),
    ("PeerError(1)", "PeerError(0)", 0),
    ("ValueError('PeerError: no')", "ValueError(7)", 0),
])
def test_a_peer_error_is_a_consequence_of_another_failure(tmp_path, script, first, second, cause):
    code, _, errors = run(tmp_path, "--workers=2", script(ONE_AFTER_THE_OTHER.format(first=first, second=second)))
    assert code == 1
    assert f"lockstep launch: worker {cause} failed first: exit code 1, " in errors
    assert f"lockstep launch: after worker {cause} failed, worker {1 - cause}: exit code 1, " in errors


def test_a_failed_job_starts_again_as_often_as_allowed_on_other_ports(tmp_path, script):
    name = script("print(os.environ['LOCKSTEP_RESTART_COUNT'], os.environ['TF_CONFIG'])\nsys.exit(9)")
    code, lines, errors = run(tmp_path, "--workers=1", "--max-restarts=2", name)
    assert code == 9
    counts, configs = zip(*(line.removeprefix("[worker 0] ").split(" ", 1) for line in lines))
    assert counts == ("0", "1", "2")
    assert len(set(configs)) == 3
    told = [line for line in errors.splitlines() if "restart" in line]
    assert told == ["lockstep launch: restart 1 of 2.", "lockstep launch: restart 2 of 2."]
    assert errors.count("worker 0 failed first: exit code 9") == 3


def test_a_job_that_succeeds_after_a_restart_has_succeeded(tmp_path, script):
    name = script("sys.exit(os.environ['LOCKSTEP_RESTART_COUNT'] == '0')")
    code, _, errors = run(tmp_path, "--workers=2", "--max-restarts=5", name)
    assert code == 0
    assert errors.endswith("lockstep launch: restart 1 of 5.\n")


def two_ports():
    """The first of two free ports that follow each other."""
    while True:
        with free_ports(1) as (port,):
            if is_free(port + 1):
                return port


def test_several_machines_agree_on_all_addresses(tmp_path, script):
    starts = two_ports(), two_ports()
    nodes = f"--nodes=127.0.0.1:{starts[0]},127.0.0.1:{starts[1]}"
    name = script(SHOW)
    configs = []
    for node in range(2):
        (tmp_path / str(node)).mkdir()
    with Launch(tmp_path / "0", "--workers=2", nodes, "--node-rank=0", f"../{name}", "TF_CONFIG") as first, \
            Launch(tmp_path / "1", "--workers=2", nodes, "--node-rank=1", f"../{name}", "TF_CONFIG") as second:
        assert (first.wait(), second.wait()) == (0, 0)
        for line in sorted(first.out.splitlines() + second.out.splitlines()):
            configs.append((line[:10], json.loads(json.loads(line[11:])[0])))
    assert [prefix for prefix, _ in configs] == [f"[worker {rank}]" for rank in range(4)]
    assert [config["task"]["index"] for _, config in configs] == [0, 1, 2, 3]
    assert configs[0][1]["cluster"]["worker"] == [f"127.0.0.1:{start + i}" for start in starts for i in range(2)]
    assert all(config["cluster"] == configs[0][1]["cluster"] for _, config in configs)


def test_several_machines_find_each_other_through_the_chiefs_address(tmp_path, script):
    starts = two_ports(), two_ports()
    name = script(SHOW)
    options = ("--workers=2", "--nnodes=2", f"--chief-address=127.0.0.1:{starts[0]}", "--start-timeout=20")
    for node in range(2):
        (tmp_path / str(node)).mkdir()
    own_port = f"--port={starts[1]}"
    with Launch(tmp_path / "1", *options, "--node-rank=1", own_port, f"../{name}", "TF_CONFIG") as second, \
            Launch(tmp_path / "0", *options, "--node-rank=0", f"../{name}", "TF_CONFIG") as first:
        assert (first.wait(), second.wait()) == (0, 0)
        configs = [json.loads(json.loads(line[11:])[0])
                   for line in sorted(first.out.splitlines() + second.out.splitlines())]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2, 3]
    assert all(config["cluster"]["worker"] == [f"127.0.0.1:{start + i}" for start in starts for i in range(2)]
               for config in configs)


@pytest.mark.parametrize("rank, missing", [(0, "node 1"), (1, r"node 0 \(127.0.0.1:\d+\)")])
def test_a_machine_that_is_never_started_is_named(tmp_path, script, rank, missing):
    chief = f"--chief-address=127.0.0.1:{two_ports()}"
    with Launch(tmp_path, "--workers=1", "--nnodes=2", chief, f"--node-rank={rank}", "--start-timeout=3.5",
                script(SHOW)) as launch:
        assert launch.wait() == 1
        assert re.search(f"waiting for {missing}, for 3 s so far", launch.err)
        assert re.search(f"cannot start the workers: {missing} did not start within 4 s", launch.err)


def test_machines_that_were_started_with_different_options_all_say_so(tmp_path, script):
    name, port = script(SHOW), two_ports()
    options = ("--nnodes=2", f"--chief-address=127.0.0.1:{port}", "--start-timeout=20", f"../{name}")
    for node in range(2):
        (tmp_path / str(node)).mkdir()
    with Launch(tmp_path / "0", "--workers=1", "--node-rank=0", *options) as first, \
            Launch(tmp_path / "1", "--workers=2", "--node-rank=1", *options) as second:
        for launch in (first, second):
            assert launch.wait() == 1
            assert "--workers is 1 on node 0 and 2 on node 1. Start all launchers with the same" in launch.err
