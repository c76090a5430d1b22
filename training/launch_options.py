"""The command line of `lockstep launch`, checked before anything starts.

    options = parse_options(["--workers=2", "train.py", "--epochs=5"])
    options.program          # ("train.py", "--epochs=5")
"""

import argparse
import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Sequence

from .command_line import Parser, seconds, whole_number
from .free_ports import LAST_PORT, is_free
from .node_meeting import NodeMeeting

DEFAULT_PORT = 12355
DESCRIPTION = """\
Starts the workers of a training job, each in a process of its own with its own
TF_CONFIG, and shows their output line by line with the worker's number before
it. When one fails, the others get the time to notice it, are then stopped, and
the first failure is printed last, with its traceback."""
EPILOG = """\
Everything after the script belongs to the script. Each worker gets its share
of the CPU cores (OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS and
TF_NUM_INTEROP_THREADS, unless they are set) and of the GPUs
(CUDA_VISIBLE_DEVICES), and finds how often the job was started again in
LOCKSTEP_RESTART_COUNT. Ctrl-C and SIGTERM are passed on to every worker; a
second Ctrl-C kills them. Workers end with the launcher, also if that is killed.

several machines: run the same command on each, only --node-rank differs.
Worker i of a machine listens on that machine's port plus i; the first worker
of the first machine is the chief. Name all machines with --nodes, or say how
many there are and where the chief is: the launchers tell each other the rest,
through the chief's port, before the workers start. With --max-restarts every
machine's launcher starts its own workers again when they fail, on the same
ports; when a worker is lost, those of all machines fail.

  host0$ lockstep launch --workers=8 --nodes=host0,host1 --node-rank=0 train.py
  host1$ lockstep launch --workers=8 --nodes=host0,host1 --node-rank=1 train.py

  host0$ lockstep launch --workers=8 --nnodes=2 --node-rank=0 \\
             --chief-address=host0:12355 train.py

exit code: 0, that of the worker that failed first, 128 + the number of the
signal that ended it or that the launcher got, or 2 for a command line that
makes no sense."""


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """What to start, and how.

    Attributes:
      num_workers: Workers on this machine.
      program: What each runs in Python: a script and its arguments, or "-m", a module and its arguments.
      nodes: "host:port" of each machine's first worker; empty where this machine is the only one.
      node_rank: This machine's position in `nodes`.
      meeting: How `nodes` is found out, None where the command line says it.
      log_dir: Where the workers' log files go, None for none.
      max_restarts: How often the job may be started again.
      grace_secs: How long workers have to end by themselves.
      is_isolated: Whether the workers get a network of their own.
    """

    num_workers: int
    program: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    node_rank: int = 0
    meeting: NodeMeeting | None = None
    log_dir: str | None = None
    max_restarts: int = 0
    grace_secs: float = 10.0
    is_isolated: bool = False

    @property
    def ranks(self) -> range:
        """The numbers in the job of this machine's workers."""
        first = self.node_rank * self.num_workers
        return range(first, first + self.num_workers)

    def log_path(self, rank: int) -> str:
        """The log file of a worker, where there is a `log_dir`."""
        return os.path.join(self.log_dir or "", f"worker_{rank}.log")

    def node_addresses(self) -> list[str]:
        """The addresses of all workers, where `nodes` says them."""
        return [address for node in self.nodes for address in _addresses(node, self.num_workers)]


def parse_options(argv: Sequence[str]) -> LaunchOptions:
    """Reads the arguments; ends the program with exit code 2 and one line where they make no sense.

    Args:
      argv: What follows `lockstep launch`.
    """
    parser = _make_parser()
    args = parser.parse_args(argv)
    if args.program[0] == "--":
        del args.program[0]
    options = LaunchOptions(
        num_workers=args.workers,
        program=(*(["-m"] if args.module else []), *args.program),
        meeting=_meeting(args, parser),
        nodes=_nodes(args, parser),
        node_rank=args.node_rank or 0,
        log_dir=args.log_dir,
        max_restarts=args.max_restarts,
        grace_secs=args.grace_seconds,
        is_isolated=args.isolate,
    )
    num_nodes = max(len(options.nodes), args.nnodes or 1)
    if options.is_isolated and num_nodes > 1:
        parser.error(f"--isolate with {num_nodes} nodes: isolated workers reach no other machine. Leave out one of the "
                     "two")
    _check_program(args, parser)
    _check_ports(options, parser)
    _check_log_dir(options, parser)
    return options


def _make_parser() -> Parser:
    parser = Parser(
        prog="lockstep launch",
        usage="lockstep launch --workers=N [options] [-m] script [arguments of the script]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workers", type=whole_number(1), required=True, metavar="N", help="how many workers run on this machine")
    add("-m", dest="module", action="store_true", help="the script is a module, as in `python -m`")
    add("--log-dir", metavar="DIR", help="add each worker's output to DIR/worker_0.log and so on as well")
    add("--max-restarts", type=whole_number(0), default=0, metavar="K",
        help="after a failure stop all workers and start them again, up to K times (0)")
    add("--grace-seconds", type=seconds, default=10.0, metavar="S",
        help="how long workers have to end by themselves, after another one failed and after a signal (10)")
    add("--isolate", action="store_true",
        help="give the workers a network of their own, on this machine: TensorFlow's servers ask for no password, and "
        "nobody else can reach them then; nor can the workers reach anybody, so the data must be on this machine")
    add("--nodes", metavar="HOST[:PORT],...", help="all machines, the same list on each; HOST as the others reach it")
    add("--node-rank", type=whole_number(0), metavar="R", help="which of them this is: 0, 1, ...")
    add("--nnodes", type=whole_number(1), metavar="N", help="how many machines there are, in place of --nodes")
    add("--chief-address", metavar="HOST:PORT", help="where the first worker of node 0 listens, with --nnodes")
    add("--port", type=whole_number(1), metavar="P", help="the first worker's port on machines that --nodes names "
        f"without one ({DEFAULT_PORT}); with --nnodes that of this machine (the chief's)")
    add("--start-timeout", type=seconds, default=600.0, metavar="S",
        help="with --nnodes, how long to wait for the other machines' launchers (600)")
    add("program", nargs=argparse.PARSER, metavar="script", help="what every worker runs, and its arguments")
    return parser


def _nodes(args: argparse.Namespace, parser: Parser) -> tuple[str, ...]:
    """Each machine's first address."""
    if args.nodes is None:
        if args.node_rank is not None and args.nnodes is None:
            parser.error(f"--node-rank={args.node_rank} without --nodes. Name all machines with --nodes=HOST0,HOST1")
        return ()
    nodes = []
    for node in args.nodes.split(","):
        match = re.fullmatch(r"(\[[^\[\]]+\]|[^\s:/\[\]]+)(?::([0-9]+))?", node)
        if match is None:
            parser.error(f"--nodes={args.nodes}: {node!r} is no HOST or HOST:PORT; an IPv6 address stands in brackets")
        first = int(match.group(2) or args.port or DEFAULT_PORT)
        if not 1 <= first <= LAST_PORT - args.workers + 1:
            parser.error(f"--nodes={args.nodes}: {args.workers} ports from {first} on are not all in 1 to {LAST_PORT}")
        nodes.append(f"{match.group(1)}:{first}")
    addresses = [address for node in nodes for address in _addresses(node, args.workers)]
    if len(set(addresses)) < len(addresses):
        parser.error(f"--nodes={args.nodes}: two of them would share a port. Name every machine once")
    if args.node_rank is None:
        parser.error("--nodes without --node-rank. Say which of them this machine is, counted from 0")
    if args.node_rank >= len(nodes):
        parser.error(f"--node-rank={args.node_rank} with {len(nodes)} nodes. Expected 0 to {len(nodes) - 1}")
    return tuple(nodes)


def _meeting(args: argparse.Namespace, parser: Parser) -> NodeMeeting | None:
    """How the other machines are found."""
    if args.nnodes is None and args.chief_address is None:
        return None
    if args.nodes is not None:
        parser.error("--nodes together with --nnodes or --chief-address. Use one of the two ways to say where the "
                     "machines are")
    if args.nnodes is None or args.chief_address is None or args.node_rank is None:
        parser.error("--nnodes, --node-rank and --chief-address belong together. Give all three on every machine")
    if args.node_rank >= args.nnodes:
        parser.error(f"--node-rank={args.node_rank} with {args.nnodes} nodes. Expected 0 to {args.nnodes - 1}")
    match = re.fullmatch(r"(\[[^\[\]]+\]|[^\s:/\[\]]+):([0-9]+)", args.chief_address)
    first = int(match.group(2)) if match else 0
    if not 1 <= first <= LAST_PORT - args.workers + 1:
        parser.error(f"--chief-address={args.chief_address}: expected HOST:PORT, the ports of {args.workers} workers "
                     f"in 1 to {LAST_PORT}")
    port = first if args.node_rank == 0 or args.port is None else args.port
    return NodeMeeting(args.chief_address, args.nnodes, args.node_rank, args.workers, port, args.start_timeout)


def _addresses(node: str, num_workers: int) -> list[str]:
    host, _, port = node.rpartition(":")
    return [f"{host}:{int(port) + i}" for i in range(num_workers)]


def _check_program(args: argparse.Namespace, parser: Parser) -> None:
    script = args.program[0]
    if not args.module:
        if not os.path.isfile(script):
            parser.error(f"there is no script {script!r} in {os.getcwd()}. A module is named after -m")
        return
    # As `python -m` does, which looks in the current folder too.
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(script.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.pop(0)
    if found is None:
        parser.error(f"there is no module {script!r}. A file is named without -m")


def _check_ports(options: LaunchOptions, parser: Parser) -> None:
    """Where `--nodes` says the ports, this machine's must be free."""
    addresses = options.node_addresses()
    for rank in options.ranks if addresses else ():
        port = int(addresses[rank].rpartition(":")[2])
        if not is_free(port):
            parser.error(f"port {port} of this machine is in use. Stop what listens there, or choose another --port on "
                         "every machine")


def _check_log_dir(options: LaunchOptions, parser: Parser) -> None:
    if options.log_dir is None:
        return
    try:
        os.makedirs(options.log_dir, exist_ok=True)
        for rank in options.ranks:
            open(options.log_path(rank), "ab").close()
    except OSError as error:
        parser.error(f"--log-dir={options.log_dir}: cannot write there: {error.strerror}")
