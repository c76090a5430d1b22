"""Tests of the command line `lockstep`: which commands there are, and what becomes of others."""

import configparser
import subprocess
import sys

import pytest

from lockstep import __main__ as command_line
from source.source_tree import ROOT
from testing.launches import run


def test_help_lists_the_commands(capsys):
    assert command_line.main(["--help"]) == 0
    out, err = capsys.readouterr()
    for command in ("launch", "doctor", "plot  "):
        assert f"\n  {command}   " in out
    assert not err


@pytest.mark.parametrize("argv, problem", [
    (["lunch"], "there is no command 'lunch'"), (["--launch"], "there is no command '--launch'"),
    ([], "the command is missing")])
def test_anything_else_is_refused_in_one_line_with_exit_code_2(capsys, argv, problem):
    assert command_line.main(argv) == 2
    assert capsys.readouterr() == (
        "", f"lockstep: {problem}. Expected launch, doctor or plot, see `lockstep --help`.\n")


@pytest.mark.parametrize("command", ["launch", "doctor", "plot"])
def test_a_command_gets_the_arguments_after_it(capsys, command):
    with pytest.raises(SystemExit) as caught:
        command_line.main([command, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: lockstep {command} ")


def test_the_program_launches_workers(tmp_path):
    (tmp_path / "train.py").write_text("import os; print(os.environ['LOCKSTEP_RESTART_COUNT'])")
    command = [sys.executable, "-m", "lockstep", "launch"]
    code, lines, errors = run(tmp_path, "--workers=1", "train.py", command=command)
    assert (code, lines) == (0, ["[worker 0] 0"]), errors


def test_the_exit_code_is_the_commands():
    finished = subprocess.run([sys.executable, "-m", "lockstep", "launch", "--workers=0", "x.py"], capture_output=True,
                              text=True, timeout=60)
    assert finished.returncode == 2
    assert finished.stderr.endswith("lockstep launch: argument --workers: is '0'. Expected a whole number, 1 or more. "
                                    "See `lockstep launch --help`.\n")


def test_the_installed_script_is_this_command_line():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert setup["options.entry_points"]["console_scripts"].split() == ["lockstep", "=", "lockstep.__main__:main"]
