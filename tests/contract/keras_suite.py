"""Runs the tests of tf.distribute that Keras ships, with our strategy in the place of TensorFlow's.

    python tests/contract/keras_suite.py
"""

import os
import sys
from pathlib import Path

FILES = ("src/backend/tensorflow/distribute_test.py", "src/backend/tensorflow/optimizer_distribute_test.py")


def main():
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import pytest
    import tensorflow as tf

    import lockstep

    tf.distribute.MirroredStrategy = lockstep.MirroredStrategy
    folder = Path(keras.__file__).parent
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder),
               "--import-mode=importlib"]
    return pytest.main([*options, *(str(folder / file) for file in FILES)])


if __name__ == "__main__":
    sys.exit(main())
