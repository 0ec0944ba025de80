#!/usr/bin/env python3
"""Measure offgraph and its peers on the same model, alternately, and print all figures and their ratios.

  tools/bench/bench.py [--rounds N] [--only NAME,...] [--json | --markdown]
  tools/bench/bench.py --report FILE      the tables of a run that was written before

In each round every program runs once, each time starting with another one. Where two programs are compared, only rounds
are compared, since a machine drifts within minutes by more than programs differ. Every process waits until nothing else
runs (--wait), and is marked where something did. What is measured goes to bench-results/, one JSON object a line.
docs/PERFORMANCE.md says what is measured and how. Model files: tools/bench/models.py.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys

import environments
import machine
import models
import report
from environments import ROOT, Unavailable
from runners import RUNNERS, Failed, Setup, commands, run_bench, run_first


def say(text):
    print(text, file=sys.stderr, flush=True)


def progress(text):
    """One line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds over all programs (default: 5)")
    parser.add_argument("--only", default="", metavar="NAME,...",
                        help="only rows or groups whose name contains one of these; rows: "
                             + ", ".join(runner.key for runner in RUNNERS) + "; groups: 4-bit, 8-bit, 16-bit")
    parser.add_argument("--models", type=pathlib.Path, default=models.default_folder(), metavar="DIR",
                        help="folder of the model files (default: OFFGRAPH_BENCH_MODELS, else .bench/models)")
    for field in dataclasses.fields(Setup):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default, metavar="N")
    parser.add_argument("--wait", type=float, default=60, metavar="SECONDS",
                        help="longest wait for a quiet machine before each process (default: 60)")
    parser.add_argument("--report", type=pathlib.Path, metavar="FILE", help="measure nothing: show what FILE holds")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the result as JSON")
    output.add_argument("--markdown", action="store_true", help="the result as tables for a document")
    flags = parser.parse_args()
    if flags.rounds < 1:
        parser.error("--rounds must be at least 1")
    flags.setup = Setup(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Setup)})
    return flags


def ready_runners(flags):
    """(runner, its commands) for all that can run here; says why the others cannot."""
    ready = []
    wanted = [name for name in flags.only.split(",") if name]
    for runner in RUNNERS:
        if wanted and not any(name in runner.key or name == runner.group for name in wanted):
            continue
        try:
            ready.append((runner, commands(runner, flags.models, flags.setup)))
        except Unavailable as error:
            say(f"Left out: {runner.key}. {error}")
    return ready


def header(flags, ready):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"kind": "run", "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "offgraph": commit.stdout.strip(), "machine": machine.describe(),
            "peers": [environments.pinned(name)[0] for name in ("BENCH_LLAMA", "BENCH_OPENVINO")],
            "setup": dataclasses.asdict(flags.setup), "runners": [runner.key for runner, _ in ready]}


def measure_once(runner, kind, command, flags):
    """One process, and whether the machine was quiet meanwhile."""
    machine.wait_until_quiet(flags.wait)
    other = machine.OtherWork()
    result = run_bench(command) if kind == "bench" else run_first(command, flags.setup.reps)
    cores = other.cores()
    return {"kind": kind, "runner": runner.key, "group": runner.group, "quiet": cores < machine.MAX_OTHER,
            "other_cores": round(cores, 3), "result": result}


def measure(flags, ready, write):
    """Calls write with each line. Returns the runners that failed; what a failed one measured before stays."""
    failed = []
    for number in range(1, flags.rounds + 1):
        turn = (number - 1) % len(ready)
        for runner, pair in ready[turn:] + ready[:turn]:
            for kind, command in zip(("bench", "first"), pair):
                if runner.key in failed:
                    continue
                progress(f"round {number} of {flags.rounds}: {runner.key}, {kind}")
                try:
                    write({**measure_once(runner, kind, command, flags), "round": number})
                except Failed as error:
                    progress("")
                    say(f"Left out from here on: {runner.key}. {error}")
                    failed.append(runner.key)
    progress("")
    return failed


def show(flags, head, lines):
    groups = report.summarize(lines, Setup(**head["setup"]))
    if flags.json:
        print(json.dumps({"run": head, "groups": [report.to_json(group) for group in groups]}, indent=2))
        return
    where, setup = head["machine"], head["setup"]
    print(f"{where['cpu']}, {where['cores']} cores, {' '.join(where['isa'])}; {setup['threads']} threads, "
          f"context {setup['capacity']}; offgraph {head['offgraph']}, {', '.join(head['peers'])}; {head['time']}\n")
    for group in groups:
        print(report.markdown(group) if flags.markdown else report.draw(group))
        print()
    print(report.CAPTION)
    if any(figure and figure.noisy for group in groups for figures in group.rows.values() for figure in figures):
        print(report.NOISY)


def main():
    flags = parse()
    if flags.report:
        head, *lines = map(json.loads, flags.report.read_text().splitlines())
        show(flags, head, lines)
        return 0
    ready = ready_runners(flags)
    if not ready:
        say("bench.py: nothing to measure")
        return 1
    head = header(flags, ready)
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    lines = []
    failed = []
    with open(folder / f"{head['time'].replace(':', '')}.jsonl", "w") as file:
        def write(line):
            file.write(json.dumps(line) + "\n")
            file.flush()

        def keep(line):
            write(line)
            lines.append(line)

        write(head)
        try:
            failed = measure(flags, ready, keep)
        except KeyboardInterrupt:
            progress("")
            say("Interrupted: these are the figures until here.")
    show(flags, head, lines)
    say(f"Written: {os.path.relpath(file.name)}")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
