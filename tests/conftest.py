"""Sets up every test session: eight logical CPUs, a quiet TensorFlow, fixed seeds."""

import os
import signal

import pytest

NUM_LOGICAL_CPUS = 8


class _PlainFolders:
    """Collects every folder as a plain folder, never as a package of tests.

    The repository root holds an `__init__.py`, the library's own. pytest takes such a folder for a
    package of tests and imports it under the name of the clone's folder: a second copy of the
    library beside the installed one.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path, parent):
        return pytest.Dir.from_parent(parent, path=path)


def _hear_signals():
    """Undoes what the start of the tests may have set.

    Under nohup, or in the background of a script, signals are ignored, which every process that a test starts inherits.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_configure(config):
    _hear_signals()
    config.pluginmanager.register(_PlainFolders())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"

    # Imports TensorFlow, which reads the environment once, when it is imported.
    from testing.logical_devices import ask_for_logical_cpus

    ask_for_logical_cpus(NUM_LOGICAL_CPUS)


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Starts every test from the same seeds of Python, NumPy and TensorFlow."""
    import keras

    keras.utils.set_random_seed(0)
