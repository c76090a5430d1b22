"""A worker is killed in the middle of a training: the job starts again, goes on from its last checkpoint, and ends
with the very numbers of a training that nobody has disturbed; the program is programs/restarts.py."""

import json
import os

from testing.launches import Launch
from testing.workers import PROGRAMS, run_workers

PROGRAM = str(PROGRAMS / "restarts.py")
DEADLINE_SECS = 120


def results_of(launch, rank):
    mark = f"[worker {rank}] RESULT "
    return dict(json.loads(line.removeprefix(mark)) for line in launch.out.splitlines() if line.startswith(mark))


def test_a_job_that_is_killed_and_started_again_ends_with_the_weights_of_an_undisturbed_one(tmp_path):
    undisturbed = run_workers("restarts", num_workers=2, replicas=2, args=[str(tmp_path / "undisturbed")])
    for worker in undisturbed:
        assert worker.code == 0, worker.output[-3000:]
    expected = undisturbed[0].results
    assert undisturbed[1].results == expected

    env = {"LOCKSTEP_TEST_REPLICAS": "2", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow",
           "PYTHONPATH": os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])}
    with Launch(tmp_path, "--workers=2", "--max-restarts=1", PROGRAM, "killed", "kill", env=env) as launch:
        assert launch.process.wait(DEADLINE_SECS) == 0, launch.err[-3000:]
        for rank in range(2):
            found = results_of(launch, rank)
            # Steps 4 to 6 alone are made after the restart.
            assert found["losses"] == {step: loss for step, loss in expected["losses"].items() if int(step) > 3}
            assert found["variables"] == expected["variables"]
        assert "lockstep launch: worker 1 failed first: killed by SIGKILL" in launch.err
        assert "PeerError: worker 1" in launch.err
        assert "lockstep launch: restart 1 of 1." in launch.err
        assert not launch.processes()
