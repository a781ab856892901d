"""Becomes the workload: waits for the word to go, takes its limits, then runs the command in its own place.

Run as a bare script, `python -I -S launcher.py`, as leader of a new session, with
  fd 0  a pipe with the instruction, JSON, to its end
  fd 1, 2  the output file of the workload
  fd 3  a pipe for one JSON error; it closes by itself when the command runs

The agent first records this process and only then sends the instruction. When the agent ends
before that, the pipe ends short of a whole instruction and nothing is run: so there is never a
copy that no record names. Environment values come through the pipe; arguments are public.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time

_ERRORS = 3
_SOFT_FILES = 1024


def main() -> None:
    """Read the instruction and become the command."""
    try:
        order = json.loads(sys.stdin.buffer.read())
    except ValueError:
        sys.exit(1)
    os.set_inheritable(_ERRORS, False)  # noqa: FBT003 - that is its signature
    os.closerange(_ERRORS + 1, 65536)
    try:
        os.chdir(order["folder"])
        _take_limits(order)
        _reset()
        if 0 < order["not_after"] < time.clock_gettime(time.CLOCK_BOOTTIME):
            raise ValueError("the control plane has not been heard for too long")  # noqa: TRY301 - told like the others
        env = order["env"] | {"FLEETBEAT_WORKLOAD_PID": str(os.getpid())}
        os.execvpe(order["command"][0], order["command"], env)  # noqa: S606 - no shell is the point
    except (OSError, ValueError) as error:
        answer = {"errno": getattr(error, "errno", None), "error": str(error)}
        os.write(_ERRORS, json.dumps(answer).encode())
        os._exit(127)


def _take_limits(order: dict) -> None:  # type: ignore[type-arg]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_SOFT_FILES, soft, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if order["file_bytes"]:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = order["file_bytes"] if hard == resource.RLIM_INFINITY else min(order["file_bytes"], hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - starts faster
        score.write("300")  # when memory runs out, the agent is not the first to go
    os.nice(order["nice"])
    for procs in order["cgroups"]:
        with open(procs, "w") as group:  # noqa: PTH123
            group.write("0")


def _reset() -> None:
    """Undo what Python does to a process, and what must not be handed on: nohup, too, makes signals ignored."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if null > 0:
        os.close(null)


if __name__ == "__main__":
    main()
