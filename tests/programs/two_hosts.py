"""On two hosts: exchanges, until the network between them fails.

    two_hosts.py fifo        writes "ready" into the fifo when there have been exchanges
"""

import sys

import tensorflow as tf

import lockstep
from lockstep.strategy import connection
from testing.workers import report

# As if the machine had been down for long: 30 seconds without this line.
connection.MACHINE_SILENT_SECONDS = 3


def main(fifo):
    strategy = lockstep.MultiWorkerMirroredStrategy()
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver().task_id
    report("sum", float(strategy.reduce("SUM", tf.constant(1.0 + task))))
    if strategy.is_chief:
        with open(fifo, "w", encoding="utf-8") as file:
            file.write("ready\n")
    while True:
        strategy.reduce("SUM", tf.constant(1.0))


if __name__ == "__main__":
    main(*sys.argv[1:])
