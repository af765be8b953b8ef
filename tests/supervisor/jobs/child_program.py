"""What the tests of child processes run: `child_program.py WORD [ARGUMENT...]`.

Processes that stay write their pid to a file once they are ready to be killed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

LINE = b"0123456789abcde\n"


def stay(pid_file: str) -> NoReturn:
    """Say who we are, and stay."""
    Path(pid_file + "~").write_text(str(os.getpid()))
    os.rename(pid_file + "~", pid_file)
    while True:
        signal.pause()


def leave(number: int, frame: object) -> NoReturn:
    """Take leave as a polite process does."""
    os.write(1, b"bye\n")
    os._exit(7)


def main(word: str, *arguments: str) -> None:
    """Do what the word says."""
    match word, arguments:
        case "exit", (code,):
            os.write(1, b"out\n")
            os.write(2, b"err\n")
            os._exit(int(code))
        case "die", ():
            os.kill(os.getpid(), signal.SIGKILL)
        case "print", (size,):
            for _ in range(int(size) // len(LINE)):
                os.write(1, LINE)
            os.write(1, b"last \xff\n")
        case "flood", (pid_file, size):  # fills a pipe that is made to hold it all, and is gone
            fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, int(size))
            Path(pid_file).write_text(str(os.getpid()))
            os.write(1, b"x" * int(size))
            os._exit(0)
        case "environment", ():
            waits = not select.select([0], [], [], 0)[0]  # neither input nor its end
            os.write(1, repr([os.environ["RELAY_DATA_DIR"], waits, os.getsid(0) == os.getpid()]).encode())
        case "write", parts:  # one write each
            for part in parts:
                os.write(1, part.encode().decode("unicode_escape").encode("latin-1"))
                time.sleep(0.02)  # noqa: TID251 - it is for the reader to come in between
        case "say", (gate, *lines):  # then wait for a write to the gate, and print it too
            os.write(1, "".join(f"{line}\n" for line in lines).encode())
            os.write(1, Path(gate).read_bytes())
        case "watchful", (own, grandchild):  # exits with its children when its parent is gone
            if os.environ["RELAY_PARENT_PIPE"] != "1" or os.fork() == 0:
                stay(grandchild)
            Path(own + "~").write_text(str(os.getpid()))
            os.rename(own + "~", own)
            sys.stdin.read()
            os.killpg(0, signal.SIGKILL)
        case "polite", (pid_file,):
            signal.signal(signal.SIGTERM, leave)
            os.write(1, b"hello\n")
            stay(pid_file)
        case "deaf", (pid_file,):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stay(pid_file)
        case "family", (own, grandchild):  # both deaf
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stay(own if os.fork() else grandchild)
        case "orphan", (kind, grandchild):  # exits at once, and leaves one behind that holds the pipe
            ready, said = os.pipe()
            if os.fork() == 0:
                os.close(ready)
                signal.signal(signal.SIGTERM, leave if kind == "polite" else signal.SIG_IGN)
                if kind == "runaway":
                    os.setsid()
                os.close(said)
                stay(grandchild)
            os.close(said)
            os.read(ready, 1)  # the end: it is what it shall be by now
            os.write(1, b"gone\n")
            os._exit(0)
        case _:
            raise SystemExit(f"what is {word}?")


if __name__ == "__main__":
    main(*sys.argv[1:])
