"""Tests of `lockstep.training.launch_options`: what a command line means, and which are refused in one line."""

import os
import socket
import sys

import pytest

from lockstep.training.free_ports import free_ports
from lockstep.training.launch_options import LaunchOptions, parse_options
from testing.launches import run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Runs every test in a folder with a script."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys, *argv):
    """The line that a command line is refused with."""
    with pytest.raises(SystemExit) as caught:
        parse_options(argv)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("lockstep launch: ") and line.endswith(". See `lockstep launch --help`.")
    return line.removeprefix("lockstep launch: ").removesuffix(". See `lockstep launch --help`.")


def test_all_options_are_read():
    argv = ["--workers=2", "--log-dir=logs", "--max-restarts=3", "--grace-seconds=1.5", "--isolate", "train.py", "--x"]
    assert parse_options(argv) == LaunchOptions(
        num_workers=2, program=("train.py", "--x"), log_dir="logs", max_restarts=3, grace_secs=1.5, is_isolated=True)
    assert parse_options(["--workers", "1", "-m", "json.tool", "-m"]) == LaunchOptions(1, ("-m", "json.tool", "-m"))
    assert parse_options(["--workers", "1", "--", "train.py", "--"]) == LaunchOptions(1, ("train.py", "--"))


def test_machines_get_the_default_port_or_their_own():
    with free_ports(1) as (port,):
        options = parse_options(["--workers=1", f"--nodes=host0:{port},[::1],host2:7", "--node-rank=0", "train.py"])
    assert options.nodes == (f"host0:{port}", "[::1]:12355", "host2:7")
    assert options.node_addresses() == list(options.nodes)
    options = LaunchOptions(2, ("train.py",), ("host0:1", "host1:5"), node_rank=1)
    assert options.node_addresses() == ["host0:1", "host0:2", "host1:5", "host1:6"]
    assert list(options.ranks) == [2, 3]


@pytest.mark.parametrize("argv, message", [
    ("train.py", "the following arguments are required: --workers"),
    ("--workers=2", "the following arguments are required: script"),
    ("--workers=2 --", "the following arguments are required: script"),
    ("--workers=0 train.py", "argument --workers: is '0'. Expected a whole number, 1 or more"),
    ("--workers=two train.py", "argument --workers: is 'two'. Expected a whole number, 1 or more"),
    ("--workers=1.5 train.py", "argument --workers: is '1.5'. Expected a whole number, 1 or more"),
    ("--workers=1 --max-restarts=-1 train.py", "argument --max-restarts: is '-1'. Expected a whole number, 0 or more"),
    ("--workers=1 --grace-seconds=nan train.py", "argument --grace-seconds: is 'nan'. Expected a number of seconds, 0 "
                                                 "or more"),
    ("--workers=1 --grace-seconds=-1 train.py", "argument --grace-seconds: is '-1'. Expected a number of seconds, 0 or "
                                                "more"),
    ("--workers=1 --isolat train.py", "unrecognized arguments: --isolat"),
    ("--workers=1 no/such.py", "there is no script 'no/such.py' in {folder}. A module is named after -m"),
    ("--workers=1 -m no_such.module", "there is no module 'no_such.module'. A file is named without -m"),
    ("--workers=1 -m .relative", "there is no module '.relative'. A file is named without -m"),
    ("--workers=1 --nnodes=2 --node-rank=0 train.py", "--nnodes, --node-rank and --chief-address belong together. Give "
                                                      "all three on every machine"),
    ("--workers=1 --nnodes=2 --chief-address=a:1 --nodes=a,b train.py", "--nodes together with --nnodes or "
     "--chief-address. Use one of the two ways to say where the machines are"),
    ("--workers=1 --nnodes=2 --chief-address=a:1 --node-rank=2 x.py", "--node-rank=2 with 2 nodes. Expected 0 to 1"),
    ("--workers=1 --nnodes=2 --chief-address=a --node-rank=1 x.py", "--chief-address=a: expected HOST:PORT, the ports "
                                                                    "of 1 workers in 1 to 65535"),
    ("--workers=1 --node-rank=0 train.py", "--node-rank=0 without --nodes. Name all machines with --nodes=HOST0,HOST1"),
    ("--workers=1 --nodes=a,b train.py", "--nodes without --node-rank. Say which of them this machine is, counted from "
                                         "0"),
    ("--workers=1 --nodes=a,b --node-rank=2 train.py", "--node-rank=2 with 2 nodes. Expected 0 to 1"),
    ("--workers=1 --nodes=a,a --node-rank=0 train.py", "--nodes=a,a: two of them would share a port. Name every "
                                                       "machine once"),
    ("--workers=2 --nodes=a:1,a:2 --node-rank=0 train.py", "--nodes=a:1,a:2: two of them would share a port. Name "
                                                           "every machine once"),
    ("--workers=1 --nodes=a,,b --node-rank=0 train.py", "--nodes=a,,b: '' is no HOST or HOST:PORT; an IPv6 address "
                                                        "stands in brackets"),
    ("--workers=1 --nodes=::1 --node-rank=0 train.py", "--nodes=::1: '::1' is no HOST or HOST:PORT; an IPv6 address "
                                                       "stands in brackets"),
    ("--workers=2 --nodes=a:65535 --node-rank=0 train.py", "--nodes=a:65535: 2 ports from 65535 on are not all in 1 to "
                                                           "65535"),
    ("--workers=1 --port=0 --nodes=a --node-rank=0 train.py", "argument --port: is '0'. Expected a whole number, 1 or "
                                                              "more"),
    ("--workers=1 --isolate --nodes=a,b --node-rank=0 train.py", "--isolate with 2 nodes: isolated workers reach no "
                                                                 "other machine. Leave out one of the two"),
    ("--workers=1 --log-dir=train.py/logs train.py", "--log-dir=train.py/logs: cannot write there: Not a directory"),
])
def test_a_command_line_that_makes_no_sense_is_refused_in_one_line(capsys, folder, argv, message):
    assert refusal(capsys, *argv.split()) == message.format(folder=folder)


def test_a_log_file_that_cannot_be_written_is_refused(capsys, folder):
    (folder / "logs" / "worker_1.log").mkdir(parents=True)
    assert refusal(capsys, "--workers=2", "--log-dir=logs", "train.py") == (
        "--log-dir=logs: cannot write there: Is a directory")


def test_a_port_of_this_machine_that_is_in_use_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refusal(capsys, "--workers=1", f"--nodes=a,b:{port}", "--node-rank=1", "train.py") == (
            f"port {port} of this machine is in use. Stop what listens there, or choose another --port on every "
            "machine")
        parse_options(["--workers=1", f"--nodes=a:{port},b:7", "--node-rank=1", "train.py"])


def test_nothing_starts_with_a_refused_command_line(folder):
    (folder / "train.py").write_text("open('started', 'w')")
    code, lines, errors = run(folder, "--workers=1", "--log-dir=train.py", "train.py")
    assert (code, lines) == (2, [])
    assert errors == ("lockstep launch: --log-dir=train.py: cannot write there: File exists. See `lockstep launch "
                      "--help`.\n")
    assert not os.path.exists("started")


def test_the_module_check_leaves_the_path_as_it_was(monkeypatch):
    monkeypatch.syspath_prepend("before")
    before = list(sys.path)
    parse_options(["--workers=1", "-m", "train"])
    assert sys.path == before


def test_the_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for option in ("--workers", "-m", "--log-dir", "--max-restarts", "--grace-seconds", "--isolate", "--nodes",
                   "--node-rank", "--port", "exit code"):
        assert f"  {option} " in text or f"\n{option}" in text
