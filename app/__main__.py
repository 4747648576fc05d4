"""The entry of `tiercel`: answers ctrl+c from its first line to its last.

What a command line means is the business of `app.cli.dispatch`, which is imported only when ctrl+c can be
answered: its imports take a tenth of a second.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own, and return its exit code.

    The process's own ends here when it was interrupted.
    """
    try:
        from app.cli.dispatch import run_command_line

        code = run_command_line(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        if argv is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again, it must not cut the message short
        print("tiercel: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    if argv is None and code == _INTERRUPTED:
        # Native code that still runs in other threads would hold up the interpreter's own end.
        with suppress(OSError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
