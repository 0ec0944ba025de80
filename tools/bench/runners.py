"""The programs that are compared, and the command lines that measure them.

Each prints the JSON of `offgraph bench --json` for one command, and its first token for another.
"""
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import environments
import models
from environments import HERE, ROOT, Unavailable

# 16 tokens of SmolLM2's tokenizer, which adds none.
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital"


@dataclasses.dataclass(frozen=True)
class Setup:
    """What every program is asked to do."""
    threads: int = 2
    capacity: int = 4096  # tokens of context that memory must be there for
    prefill: str = "512,2048"
    depth: str = "0,2048,4000"
    decode: int = 48
    reps: int = 3


@dataclasses.dataclass(frozen=True)
class Runner:
    """One row of the tables: a program with a model."""
    key: str
    group: str  # the weights' size: only runners of one group are compared
    program: str
    model: str  # of models.py
    kv: str = "fp16"
    weights: str = "packed"  # of llama_peer.c

    @property
    def is_offgraph(self):
        return self.program == "offgraph"


RUNNERS = (
    Runner("offgraph-4w", "4-bit", "offgraph", "4w"),
    Runner("llama-Q4_1", "4-bit", "llama.cpp", "Q4_1"),
    Runner("llama-Q4_0", "4-bit", "llama.cpp", "Q4_0"),
    Runner("llama-Q4_1-plain", "4-bit", "llama.cpp", "Q4_1", weights="plain"),
    Runner("openvino-Q4_1", "4-bit", "OpenVINO GenAI", "Q4_1", kv="default"),
    Runner("openvino-Q4_1-kv16", "4-bit", "OpenVINO GenAI", "Q4_1"),
    Runner("offgraph-8w", "8-bit", "offgraph", "8w"),
    Runner("llama-Q8_0", "8-bit", "llama.cpp", "Q8_0"),
    Runner("llama-Q8_0-plain", "8-bit", "llama.cpp", "Q8_0", weights="plain"),
    Runner("openvino-Q8_0", "8-bit", "OpenVINO GenAI", "Q8_0", kv="default"),
    Runner("offgraph-bf16", "16-bit", "offgraph", "bf16"),
    Runner("llama-BF16", "16-bit", "llama.cpp", "BF16"),
)


def offgraph_program():
    program = pathlib.Path(os.environ.get("OFFGRAPH", ROOT / "build" / "offgraph"))
    if not program.is_file():
        raise Unavailable(f"{os.path.relpath(program)} is absent; to make it: make build")
    return program


def offgraph_commands(_runner, model, setup):
    common = ["--threads", str(setup.threads), "--capacity", str(setup.capacity), "--kv-dtype", "fp16"]
    program = offgraph_program()
    return ([program, "bench", model, "--prefill", setup.prefill, "--depth", setup.depth, "--decode", str(setup.decode),
             "--reps", str(setup.reps), "--json", *common],
            [program, "run", model, "-p", PROMPT, "-n", "1", "--temp", "0", "--quiet", *common])


def llama_commands(runner, model, setup):
    program = environments.llama()
    common = [model, runner.weights, str(setup.threads), str(setup.capacity)]
    return ([program, "bench", *common, setup.prefill, setup.depth, str(setup.decode), str(setup.reps)],
            [program, "first", *common, PROMPT])


def openvino_commands(runner, model, setup):
    program = [environments.openvino(), HERE / "openvino_peer.py"]
    kv = "f16" if runner.kv == "fp16" else runner.kv
    common = [model, kv, str(setup.threads), str(setup.capacity)]
    return ([*program, "bench", *common, setup.prefill, setup.depth, str(setup.decode), str(setup.reps)],
            [*program, "first", *common, PROMPT])


COMMANDS = {"offgraph": offgraph_commands, "llama.cpp": llama_commands, "OpenVINO GenAI": openvino_commands}


def commands(runner, folder, setup):
    """The command that benchmarks the runner and the one that prints its first token. Raises Unavailable."""
    model = str(models.path(folder, runner.model))
    return [list(map(str, command)) for command in COMMANDS[runner.program](runner, model, setup)]


class Failed(Exception):
    """A measured program failed: its exit status and the end of what it said."""


def _check(command, status, said):
    if status != 0:
        reason = said.decode(errors="replace").strip()[-2000:]
        raise Failed(f"{' '.join(command)}\nended with status {status}: {reason}")


def run_bench(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    _check(command, done.returncode, done.stderr)
    return json.loads(done.stdout)


def run_first(command, reps):
    """Seconds from starting the process to the first byte of its reply, the median of reps."""
    seconds = []
    for _ in range(reps):
        # What it says goes to a file: a pipe that nobody reads while the first byte is waited for could fill.
        with tempfile.TemporaryFile() as said:
            begin = time.monotonic()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
            first = os.read(process.stdout.fileno(), 1)
            seconds.append(time.monotonic() - begin)
            process.communicate()
            said.seek(0)
            _check(command, process.returncode, said.read())
        if not first:
            raise Failed(f"{' '.join(command)}\nprinted nothing")
    return {"first_token_s": statistics.median(seconds)}
