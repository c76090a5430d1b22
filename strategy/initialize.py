"""Setting up several workers as `keras.distribution.initialize` does on other backends: by addresses and a number."""

from __future__ import annotations

import json
import os
from typing import Any

from absl import logging

from ..collective import CollectiveOptions
from ..collective.options import is_integer
from .cluster import VARIABLE, Cluster
from .distribution_devices import joined

_PREFIX = "KERAS_DISTRIBUTION_"


def initialize(job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None,
               options: CollectiveOptions | None = None) -> None:
    """Makes this process one of several workers, and waits until all have met.

    What is not given comes from the environment variables KERAS_DISTRIBUTION_JOB_ADDRESSES,
    KERAS_DISTRIBUTION_NUM_PROCESSES and KERAS_DISTRIBUTION_PROCESS_ID. Where they tell nothing either, TF_CONFIG
    counts; without it there is one worker. The cluster is written to TF_CONFIG, for all that is made afterwards.

    Synchronisation: every worker must call, at the start of its program.

    >>> lockstep.initialize()                   # no address here: one worker
    >>> lockstep.DataParallel().num_processes
    1

    Args:
        job_addresses: The "host:port" of every worker, separated by commas, the same on all workers.
        num_processes: How many workers there are; None counts the addresses.
        process_id: Which of them this process is, from 0 on.
        options: How tensors are exchanged and how long workers wait; None takes the defaults.

    Raises:
        TypeError: `job_addresses` is no string, or a number is no integer.
        ValueError: The addresses, the number of workers and this one's do not fit together or to TF_CONFIG.
        RuntimeError: TensorFlow has run ops in this process before.
        PeerError: A worker is missing at the time limit.
    """
    addresses = _given(job_addresses, "JOB_ADDRESSES")
    count = _whole_number(_given(num_processes, "NUM_PROCESSES"), "num_processes")
    number = _whole_number(_given(process_id, "PROCESS_ID"), "process_id")
    if addresses is not None:
        _describe(addresses, count, number)
    elif (count or 1) > 1 or number:
        raise ValueError(f"`initialize`: `num_processes` is {count} and `process_id` is {number}, and there are no "
                         f"`job_addresses`. Name the address of every worker: {_EXAMPLE}.")
    if joined(options) is None:
        logging.info("`initialize`: one worker.")


_EXAMPLE = '`initialize("10.0.0.1:1234,10.0.0.2:2345", num_processes=2, process_id=0)`'


def _given(value: Any, name: str) -> Any:
    return os.environ.get(_PREFIX + name) if value is None else value


def _whole_number(value: Any, name: str) -> int | None:
    if isinstance(value, str) and value.isdecimal():  # From the environment.
        return int(value)
    if value is not None and not is_integer(value):
        raise TypeError(f"`initialize`: `{name}` is {value!r}. Expected a whole number.")
    return None if value is None else int(value)


def _describe(job_addresses: Any, num_processes: int | None, process_id: int | None) -> None:
    """Writes the cluster to TF_CONFIG, checked."""
    if not isinstance(job_addresses, str):
        raise TypeError(f"`initialize`: `job_addresses` is {job_addresses!r}. Expected a string of addresses, "
                        f"separated by commas: {_EXAMPLE}.")
    addresses = [address.strip() for address in job_addresses.split(",")]
    if num_processes is not None and num_processes != len(addresses):
        raise ValueError(f"`initialize`: `num_processes` is {num_processes}, and `job_addresses` lists "
                         f"{len(addresses)}: {job_addresses!r}. TensorFlow connects every worker to every other. List "
                         "all addresses.")
    if process_id is None or not 0 <= process_id < len(addresses):
        raise ValueError(f"`initialize`: `process_id` is {process_id}. Expected this worker's number, 0 to "
                         f"{len(addresses) - 1}, another one in every process.")
    config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": process_id}})
    cluster, before = Cluster.from_environment({VARIABLE: config}), Cluster.from_environment(os.environ)
    if before is not None and before != cluster:
        raise ValueError(f"`initialize`: {VARIABLE} describes another cluster, or another worker of it, than the "
                         f"arguments: {os.environ[VARIABLE]} against {config}. Say it once.")
    os.environ[VARIABLE] = config
