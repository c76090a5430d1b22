"""Runs the tests of keras.distribution that Keras ships, with our classes in the place of Keras's, and without the
marks that skip most of them on TensorFlow.

    python tests/contract/keras_distribution_suite.py
"""

import os
import sys
from pathlib import Path

FILE = Path("src/distribution/distribution_lib_test.py")
CLASSES = ("DataParallel", "DeviceMesh", "TensorLayout", "list_devices")


class WithoutSkips:
    """Takes away the marks that skip tests, and the tests of the classes that are left out."""

    def __init__(self, left_out):
        self.left_out = left_out

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.cls.__name__ not in self.left_out]
        for item in items:
            for node in item.listchain():
                node.own_markers[:] = [mark for mark in node.own_markers if mark.name not in ("skip", "skipif")]


def main(left_out):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import pytest
    import tensorflow as tf
    from keras.src.backend import distribution_lib as backend
    from keras.src.distribution import distribution_lib

    import lockstep

    cpu, = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    for name in CLASSES:
        setattr(distribution_lib, name, getattr(lockstep, name))
    # The suite puts other functions in the place of these, or asks them; Keras's TensorFlow backend has none.
    backend.num_processes = lambda: 1
    backend.process_id = lambda: 0
    backend.get_device_count = lambda device_type: len(lockstep.list_devices(device_type))
    folder = Path(keras.__file__).parent
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder),
               "--import-mode=importlib"]
    return pytest.main([*options, str(folder / FILE)], plugins=[WithoutSkips(left_out)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
