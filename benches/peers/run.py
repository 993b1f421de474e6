"""Our figures and the peers', side by side, of one run; results are checked as well as times.

make bench                                    # everything
python benches/peers/run.py --only act        # one workload
python benches/peers/run.py --quick --json figures.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import policies
import virtual_environment
from report import Report

HERE = Path(__file__).parent

# By workload: the peer's virtual environment, or None where ours has all that it needs.
WORKLOADS = {
    "act": None,
    "recurrent": None,
    "fixed_batch": None,
    "torchscript": None,
    "actors_memory": None,
    "gymnasium_cartpole": None,
    "envpool_cartpole": "envpool",
    "relayrl_actors": None,
    "process_vector_env": None,
    "wake_ups": None,
    "relayrl_single_calls": None,
    "one_call": None,
    "single_calls": None,
    "max_wait": None,
    "torchrl_single_calls": "torchrl",
    "asyncio_calls": "uvloop",
    "update_model": None,
    "recording": None,
    "kernels": "torchrl",
}


def main() -> None:
    """Runs the workloads and prints their reports."""
    parser = argparse.ArgumentParser(description="Our figures and the peers', side by side.")
    parser.add_argument("--only", choices=WORKLOADS, action="append", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, to see that all works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures into FILE as well")
    options = parser.parse_args()

    chosen = options.only or list(WORKLOADS)
    pythons = {
        name: Path(sys.executable) if peer is None else virtual_environment.python_of(peer)
        for name, peer in WORKLOADS.items()
        if name in chosen
    }
    description, warning = machine.describe(), machine.warning()
    for name, value in description.items():
        print(f"{name}: {value}")
    if warning:
        print(f"WARNING: {warning}")
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="relevo-policies-") as folder:
        policies.write_all(Path(folder))
        for name, python in pythons.items():
            print(f"\n==> {name}", flush=True)
            reports[name] = _run(name, python, folder, options.quick)
            print(*reports[name].lines(), sep="\n", flush=True)
    if options.json:
        figures = {
            "machine": description,
            "warning": warning,
            "quick": options.quick,
            "workloads": {name: report.to_json() for name, report in reports.items()},
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        print(f"\nfigures written to {options.json}")
    missed = [f"{name}: {goal.case}: {goal.asked}" for name in reports for goal in reports[name].goals if not goal.met]
    print(f"\n{len(missed)} goals not met" + "".join(f"\n  {each}" for each in missed))


def _run(name: str, python: Path, folder: str, quick: bool) -> Report:
    """Runs one workload in a process of its own, so that none meets another's threads and memory."""
    command = [python, HERE / f"{name}.py", "--policies", folder, *(["--quick"] if quick else [])]
    # What it says in passing and its errors go to the terminal at once.
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        sys.exit(f"\nthe workload {name} failed; the command was: {' '.join(map(str, command))}")
    return Report.from_json(json.loads(finished.stdout))


if __name__ == "__main__":
    main()
