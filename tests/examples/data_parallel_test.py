"""The example of Keras's interface: one device under Keras's class, all under ours, and the same losses."""

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).absolute().parents[2] / "examples" / "data_parallel.py"


def test_keras_trains_on_one_device_and_lockstep_on_all_with_the_same_losses():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    keras_line, own_line = done.stdout.splitlines()
    pattern = r"(\S+)\.DataParallel: losses on 7 rows (\S+), (\S+), (\S+); products on (.*)"
    provider, *losses, devices = re.fullmatch(pattern, keras_line).groups()
    assert (provider, devices) == ("keras.distribution", "CPU:0")
    assert re.fullmatch(pattern, own_line).groups() == ("lockstep", *losses, "CPU:0, CPU:1, CPU:2, CPU:3")
    assert float(losses[2]) < float(losses[0]) / 2
