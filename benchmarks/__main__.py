"""``python -m benchmarks [names ...]``: one JSON line per result on stdout, narration on stderr.

``python -m benchmarks compare`` is another command, which compares Relay with alternatives.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks.cases.adapters import ADAPTER_CASES
from benchmarks.cases.agents import AGENT_CASES
from benchmarks.cases.bus import BUS_CASES
from benchmarks.cases.bystander import BYSTANDER_CASES
from benchmarks.cases.first_run import FIRST_RUN_CASES
from benchmarks.cases.mcp import MCP_CASES
from benchmarks.cases.search import SEARCH_CASES
from benchmarks.cases.socket import SOCKET_CASES
from benchmarks.cases.spark import SPARK_CASES
from benchmarks.cases.tui import TUI_CASES
from benchmarks.compare import command
from benchmarks.harness import Bench, Result, positive, say
from benchmarks.rig.workplace import file_system, workplace

CASES = BUS_CASES | SOCKET_CASES | BYSTANDER_CASES | ADAPTER_CASES | AGENT_CASES | MCP_CASES
CASES |= SEARCH_CASES | TUI_CASES | SPARK_CASES | FIRST_RUN_CASES


def main() -> None:
    """Run the chosen cases, or the comparison."""
    if sys.argv[1:2] == ["compare"]:
        command.main(sys.argv[2:])
        return
    options = _options()
    if options.list:
        print("\n".join(CASES))
        return
    new_loop = importlib.import_module("uvloop").new_event_loop if options.uvloop else None
    with workplace(options.dir, loop_ext4=options.loop_ext4) as root:
        bench = Bench(
            root,
            rounds=options.rounds or (3 if options.quick else 7),
            messages=options.messages or (300 if options.quick else 1500),
            stored=10_000 if options.quick else 100_000,
            endpoints=1_000 if options.quick else 10_000,
            new_loop=new_loop,
        )
        loop = "uvloop" if new_loop else "asyncio"
        say(f"Python {platform.python_version()}, {loop}, {os.cpu_count()} processors, {file_system(root)}")
        say(f"{bench.rounds} rounds of {bench.messages} messages; {bench.stored} stored, {bench.endpoints} endpoints")
        if options.table:
            print("| case | metric | value | goal | spread | met |\n|---|---|---|---|---|---|")
        for name, case in CASES.items():
            if not options.names or name in options.names:
                for result in case(bench, name):
                    print(_row(result) if options.table else json.dumps(result), flush=True)
        say("cleaning up")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the bus against bare loops.",
        epilog="Another command: python -m benchmarks compare",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 300, a tenth stored: a smoke test")
    parser.add_argument("--rounds", type=positive, help="rounds of each case (default: 7)")
    parser.add_argument("--messages", type=positive, help="messages of each measurement (default: 1500)")
    parser.add_argument("--dir", type=Path, help="where to write (default: .benchmarks, in the current directory)")
    parser.add_argument("--loop-ext4", action="store_true", help="use a loop-mounted ext4 with a journal (as root)")
    parser.add_argument("--uvloop", action="store_true", help="use uvloop instead of asyncio's own loop")
    parser.add_argument("--table", action="store_true", help="print a Markdown table instead of JSON lines")
    options = parser.parse_args()
    if options.uvloop and importlib.util.find_spec("uvloop") is None:
        parser.error("--uvloop: uvloop is not installed")
    if unknown := [name for name in options.names if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}: choose from {', '.join(CASES)}")
    return options


def _row(result: Result) -> str:
    low, high = result["spread"]
    sign, met = "≥" if result["at"] == "least" else "≤", "yes" if result["met"] else "no"
    value, goal = f"{result['value']:g} {result['unit']}", f"{sign} {result['goal']:g} {result['unit']}"
    return f"| {result['bench']} | {result['metric']} | {value} | {goal} | {low:g} – {high:g} | {met} |"


if __name__ == "__main__":
    main()
