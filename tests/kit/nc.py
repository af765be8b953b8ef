"""A stand-in for OpenBSD's netcat, as far as `nc [-N] -U PATH` goes, for machines that have none.

What stdin says goes to the socket, what the socket says goes to stdout. At the end of stdin `-N` shuts our half of the
connection; the program ends when the other half is shut.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys


def main() -> int:
    """Pass bytes both ways until the peer is done."""
    parser = argparse.ArgumentParser(prog="nc")
    parser.add_argument("-N", dest="shut", action="store_true")
    parser.add_argument("-U", dest="path", required=True)
    chosen = parser.parse_args()
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(chosen.path)
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    sources: list[int] = [stdin, peer.fileno()]
    while True:
        for source in select.select(sources, [], [])[0]:
            if source == stdin:
                if data := os.read(stdin, 65536):
                    peer.sendall(data)
                else:
                    sources.remove(stdin)
                    if chosen.shut:
                        peer.shutdown(socket.SHUT_WR)
            elif data := peer.recv(65536):
                os.write(stdout, data)
            else:
                return 0


if __name__ == "__main__":
    sys.exit(main())
