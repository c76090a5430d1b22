"""The environment of each worker: its place in the cluster, and its share of the machine's cores and GPUs.

    share_gpus(["0", "1"], 2)                              # (["0", "1"], "")
    worker_environment(addresses, rank=1, cores=4, gpus="1", restart_count=0, base=os.environ)
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

GPUS = "CUDA_VISIBLE_DEVICES"
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
NVIDIA_SMI_SECS = 20


def worker_environment(
    addresses: Sequence[str],
    rank: int,
    cores: int,
    gpus: str | None,
    restart_count: int,
    base: Mapping[str, str],
) -> dict[str, str]:
    """Returns the environment of one worker.

    Args:
      addresses: Where the workers of the job listen, in order.
      rank: Which of them this worker is.
      cores: How many cores it may use; what the user has set stays.
      gpus: What CUDA_VISIBLE_DEVICES becomes; None leaves it as it is.
      restart_count: How often the job has been started again.
      base: The launcher's own environment.
    """
    cluster = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
    environ = {**{name: str(cores) for name in THREADS}, **base}
    environ["TF_CONFIG"] = json.dumps(cluster)
    environ["LOCKSTEP_RESTART_COUNT"] = str(restart_count)
    environ["PYTHONUNBUFFERED"] = "1"
    if gpus is not None:
        environ[GPUS] = gpus
    return environ


def share_cores(num_workers: int) -> int:
    """How many of the cores that this process may use are one worker's share; at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers)


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of this machine by the names that CUDA_VISIBLE_DEVICES takes."""
    if GPUS in environ:
        names = [name.strip() for name in environ[GPUS].split(",")]
        # As CUDA reads it: the list ends at the first name that is none.
        end = next((position for position, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:end]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in lines))]


def share_gpus(gpus: Sequence[str], num_workers: int) -> tuple[list[str | None], str]:
    """Shares GPUs out, the same number to every worker.

    Args:
      gpus: The names of the GPUs.
      num_workers: How many workers there are.

    Returns:
      What CUDA_VISIBLE_DEVICES becomes for each worker, None where there are no GPUs to share, and a sentence where
      workers get none or GPUs are left over, else "".
    """
    if not gpus:
        return [None] * num_workers, ""
    each = len(gpus) // num_workers
    if not each:
        shares: list[str | None] = [*gpus, *[""] * (num_workers - len(gpus))]
        return shares, (
            f"{num_workers} workers for {len(gpus)} GPUs: the last {num_workers - len(gpus)} get none and train on "
            f"CPUs, and all wait for them. --workers={len(gpus)} gives every worker a GPU."
        )
    used = each * num_workers
    shares = [",".join(gpus[start:start + each]) for start in range(0, used, each)]
    note = f"{len(gpus) - used} of {len(gpus)} GPUs stay unused: every worker gets {each}."
    return shares, note if used < len(gpus) else ""
