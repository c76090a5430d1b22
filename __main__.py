"""The command line: `lockstep launch ...`, `lockstep doctor ...`, `lockstep plot ...`, also `python -m lockstep ...`.

Each command is a function of a module of `training/`, imported when it is asked for.
"""

import sys
from collections.abc import Sequence

USAGE = """\
usage: lockstep COMMAND [arguments]

  launch   starts the workers of a training job on this machine, and stops or restarts them when one fails
  doctor   checks the cluster that TF_CONFIG describes: its tasks, their versions, who reaches whom
  plot     draws the log of a Trainer's run: its outputs and its throughput over the steps

`lockstep COMMAND --help` says more about one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      argv: The command and its arguments; by default those of the process.

    Returns:
      The exit code; 2 where there is no such command.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else None
    if command == "launch":
        from .training import launcher

        return launcher.main(arguments)
    if command == "doctor":
        from .training import doctor

        return doctor.main(arguments)
    if command == "plot":
        from .training import plot

        return plot.main(arguments)
    if command in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    problem = "the command is missing" if command is None else f"there is no command {command!r}"
    sys.stderr.write(f"lockstep: {problem}. Expected launch, doctor or plot, see `lockstep --help`.\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
