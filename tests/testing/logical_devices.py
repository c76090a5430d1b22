"""Asks TensorFlow for logical devices, so that one machine stands for several.

`tests/conftest.py` calls it once, before anything starts TensorFlow's runtime. A test that needs
another number runs in a process of its own:

    ask_for_logical_cpus(4)
    strategy = lockstep.MirroredStrategy([f"CPU:{i}" for i in range(4)])
"""

import tensorflow as tf


def ask_for_logical_cpus(count):
    """Splits this process's one CPU device into `count` logical ones.

    Asking again for the number that is already there does nothing. GPUs are left as they are.

    Args:
      count: How many logical CPU devices this process shall have, 1 or more.

    Raises:
      ValueError: `count` is below 1.
      RuntimeError: The runtime has started with another number of CPU devices.
    """
    if count < 1:
        raise ValueError(
            f"`ask_for_logical_cpus`: `count` is {count}. Expected 1 or more. "
            "Ask for one CPU device at least."
        )
    (cpu,) = tf.config.list_physical_devices("CPU")
    configurations = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, configurations)
    except RuntimeError as error:
        have = len(tf.config.list_logical_devices("CPU"))
        if have != count:
            raise RuntimeError(
                f"`ask_for_logical_cpus`: asked {count}, have {have}, the runtime has already "
                "started. Devices are split before the runtime starts. Ask before the first "
                "tensor is made, or in a process of its own."
            ) from error
