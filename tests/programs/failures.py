"""Ways in which a worker fails, or disagrees; the argument says which. The deadline is 10 seconds."""

import os
import signal
import sys
import threading

import tensorflow as tf

import lockstep
from testing.workers import report


def context():
    return tf.distribute.get_replica_context()


def main(event):
    strategy = lockstep.MultiWorkerMirroredStrategy(options=lockstep.CollectiveOptions(
        timeout_seconds=10, warn_seconds=2, implementation="ring" if event == "not come" else "auto"))
    rank = strategy.extended.workers.rank

    @tf.function
    def step(x):
        return context().all_reduce("SUM", x)

    @tf.function
    def outer(x):
        return strategy.run(step, args=(x,))

    assert int(strategy.run(step, args=(tf.constant(1),))) == strategy.num_workers
    if event == "raise" and rank == 1:
        raise ValueError("no such file: rows.csv")
    if event == "raise in a function" and rank == 0:
        raise ValueError("no such file: rows.csv")
    if event == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "freeze" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if event == "leave" and rank == 1:
        sys.exit(0)
    if event == "leave when nobody needs it" and rank == 0:
        sys.exit(0)
    if event == "exit code" and rank == 1:
        sys.exit(3)
    if event == "caught exit" and rank == 1:
        try:
            sys.exit(3)
        except SystemExit:
            report("caught", True)
    if event == "interrupt" and rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    if event == "not come" and rank == 1:
        threading.Event().wait()
    if event == "fork":
        fork(rank)
    try:
        if event in ("raise", "kill", "freeze", "leave", "exit code", "caught exit", "interrupt", "fork", "not come"):
            strategy.run(step, args=(tf.constant(1),))
            if event == "caught exit" and rank == 1:
                sys.exit(0)
            strategy.barrier("after training")
        elif event == "raise in a function":
            outer(tf.constant(1))
        else:
            disagree(event, strategy, rank)
    except Exception as error:
        report("error", [type(error).__name__, str(error)])
        if isinstance(error, lockstep.CollectiveMismatchError):
            report("goes on", int(strategy.run(step, args=(tf.constant(1),))))
        else:
            raise


def fork(rank):
    """A process that is forked off ends in its own ways, and is no worker."""
    child = os.fork()
    if not child:
        if rank:
            raise ValueError("of the child alone")
        sys.exit(3)
    report("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def disagree(event, strategy, rank):
    def run(function, *args):
        return strategy.run(tf.function(function), args=args)

    if event == "shape":
        run(lambda: context().all_reduce("SUM", tf.ones([2 + rank], name="weights")))
    elif event == "dtype":
        run(lambda: context().all_reduce("SUM", tf.ones([2], tf.float64 if rank else tf.float32)))
    elif event == "op":
        strategy.reduce("SUM" if rank else "MAX", tf.ones([2]))
    elif event == "order":
        names = ("left", "right") if rank else ("right", "left")
        run(lambda: [context().all_reduce("SUM", tf.ones([2], name=name)) for name in names])
    elif event == "order in Python":
        left, right = tf.ones([2]), 2 * tf.ones([2])
        if rank:
            strategy.reduce("SUM", left)
        strategy.reduce("SUM", right)
        strategy.reduce("SUM", left)
    elif event == "number":
        run(lambda: [context().all_reduce("SUM", tf.ones([2])) for _ in range(1 + rank)])
        run(lambda: context().all_reduce("MAX", tf.ones([2])))
    elif event == "one stops early":
        for number in range(3):
            if number == 1 + rank:
                break
            strategy.reduce("SUM", tf.constant(1.0))
        strategy.barrier("after training")
    elif event == "all stop together":
        for number in range(3):
            wants_to_stop = tf.constant(number == 1 + rank)
            if bool(strategy.reduce("MAX", tf.cast(wants_to_stop, tf.int32))):
                break
        strategy.barrier("after training")
        report("stopped after", number)
    elif event == "a partial batch on one worker":
        # Shapes are static, and worker 0 traces a second time, alone.
        step = tf.function(lambda x: lockstep.average_loss(x))
        rows = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0] if rank == 0 else [8.0, 9.0, 10.0, 11.0])
        report("losses", [float(strategy.reduce("SUM", strategy.run(step, args=(tf.constant(x),)))) for x in rows])
    elif event == "leave when nobody needs it":
        report("alone", float(tf.reduce_sum(tf.ones([3]))))
    else:
        raise KeyError(event)


if __name__ == "__main__":
    main(sys.argv[1])
