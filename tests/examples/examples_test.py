"""Tests of the examples: each runs as a program, with few steps, and its last lines are checked."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).absolute().parents[2] / "examples"
DEADLINE_SECS = 240
LOSSES = r"loss (\d+\.\d+) at the first step, (\d+\.\d+) at step 50"


def run(program, *flags):
    """Runs an example, and returns its exit code, the lines of its output and its errors."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *flags],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
    )
    return finished.returncode, finished.stdout.splitlines(), finished.stderr


def succeed(program, *flags):
    code, lines, errors = run(program, *flags)
    assert code == 0, errors
    return lines


def test_digits_ends_with_accuracy_and_hash_the_same_on_every_run(tmp_path):
    flags = ["--steps=20", "--replicas=2"]
    first, second = (succeed("digits.py", *flags, *where) for where in ([f"--model_dir={tmp_path}"], []))
    assert re.fullmatch(r"test accuracy 0\.\d{3}", first[-2])
    assert re.fullmatch(r"weights [0-9a-f]{64}", first[-1])
    assert first[-2:] == second[-2:]
    assert (tmp_path / "digits.keras").stat().st_size > 0
    assert any(line.startswith("train: step 20/20, loss ") and "accuracy " in line for line in first)


def test_digits_that_is_killed_goes_on_and_ends_with_the_lines_of_an_undisturbed_run(tmp_path):
    flags = ["--steps=60", "--replicas=2"]
    undisturbed = succeed("digits.py", *flags)
    command = [sys.executable, str(EXAMPLES / "digits.py"), *flags, f"--model_dir={tmp_path}"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_SECS
    while not (tmp_path / "checkpoints" / "step_000000050").exists() and killed.poll() is None:
        assert time.monotonic() < deadline
    killed.kill()
    killed.wait()
    assert succeed("digits.py", *flags, f"--model_dir={tmp_path}")[-2:] == undisturbed[-2:]


def test_a_loop_on_one_device_and_on_replicas_differ_in_few_lines_and_in_no_number():
    programs = ["loop_one_device.py", "loop_replicas.py"]
    one, replicas = ((EXAMPLES / name).read_text(encoding="utf-8").split('"""')[2].splitlines() for name in programs)
    kept = [line.strip() for line in one if line.strip()]
    changed = [line for line in map(str.strip, replicas) if line and line not in kept]
    assert len(changed) < 10
    losses = [re.findall(r"epoch (\d): loss of the last batch (0\.\d+|1\.\d+)", "\n".join(succeed(name)))
              for name in programs]
    assert losses[0] == losses[1] and [epoch for epoch, _ in losses[0]] == list("12345")


def test_digits_on_two_workers_prints_its_last_lines_once():
    finished = subprocess.run(
        [sys.executable, "-m", "lockstep", "launch", "--workers=2", str(EXAMPLES / "digits.py"), "--steps=20"],
        capture_output=True, text=True, timeout=DEADLINE_SECS)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = finished.stdout.splitlines()
    assert [line for line in lines if "test accuracy" in line or "] weights " in line] == lines[-2:]
    assert re.fullmatch(r"\[worker 0\] test accuracy 0\.\d{3}", lines[-2])


def test_digits_learns_with_its_default_flags(tmp_path):
    lines = succeed("digits.py", f"--model_dir={tmp_path}")
    assert float(lines[-2].removeprefix("test accuracy ")) >= 0.97


def test_the_saved_digits_model_gives_the_printed_accuracy(tmp_path):
    lines = succeed("digits.py", "--steps=20", "--replicas=1", f"--model_dir={tmp_path}")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import digits, keras; "
        "images, labels = digits.load_digits()[1]; "
        "assert [int((labels == digit).sum()) for digit in range(10)] == [36] * 10; "
        "predicted = keras.saving.load_model(sys.argv[2]).predict(images, verbose=0).argmax(axis=1); "
        "print(f'test accuracy {(predicted == labels).mean():.3f}')"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLES), str(tmp_path / "digits.keras")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    assert finished.stdout.splitlines()[-1] == lines[-2]


@pytest.mark.parametrize("flag", ["--replicas=0", "--global_batch=-1"])
def test_digits_names_a_flag_that_is_too_small(flag):
    code, _, errors = run("digits.py", flag)
    assert code != 0
    assert f"flag {flag}" in errors


def test_digits_refuses_a_folder_it_cannot_write_to_before_training(tmp_path):
    file = tmp_path / "file"
    file.touch()
    code, lines, errors = run("digits.py", f"--model_dir={file}/models")
    assert code != 0
    assert f"--model_dir={file}/models: cannot write there" in "\n".join(lines) + errors
    assert not any(line.startswith("train:") for line in lines)


def test_both_tutorials_learn_and_give_the_numbers_of_one_device():
    matches = [
        re.fullmatch(LOSSES, succeed(program, "--steps=50")[-1])
        for program in ("tutorial_eager_loop.py", "tutorial_distributed_function.py")
    ]
    whole, split = [[float(loss) for loss in match.groups()] for match in matches]
    assert whole == pytest.approx(split, abs=2e-4)
    assert whole[1] < whole[0] / 2
