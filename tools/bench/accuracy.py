#!/usr/bin/env python3
"""What faster arithmetic costs: how far a model's predictions move from those of a more exact computation.

  tools/bench/accuracy.py                                        offgraph's modes against each other, and llama.cpp's
                                                                 types against its F16 file
  tools/bench/accuracy.py --pair NAME REFERENCE CANDIDATE ...    any two dumps, beside them

A dump holds the logits of every position of a text: float32 [positions, vocab], as .npy, or as .safetensors with a
tensor `logits` (or only one). The text is tools/bench/text.txt, its first 2,000 tokens.

For each pair, over the positions: the mean and the 99th percentile of the Kullback-Leibler divergence of the
candidate's distribution from the reference's, in nats, and the share of positions where both name the same first token.
"""
import argparse
import json
import os
import pathlib
import struct
import sys
import tempfile

import environments
import models
import report
import runners
from environments import BENCH, HERE, Unavailable, run_quietly

try:
    import numpy
except ImportError:  # the peers' environment has it
    if __name__ != "__main__":
        raise
    try:
        python = environments.llama_python()
    except Unavailable as error:
        sys.exit(f"accuracy.py: needs numpy. {error}")
    os.execv(python, [python, *sys.argv])

REFERENCE = "F16"
CANDIDATES = ("Q4_1", "Q4_0", "Q8_0")
ROWS_AT_ONCE = 64


def load_safetensors(path):
    """The tensor `logits`, or the only one, without reading it all."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(size))
    tensors.pop("__metadata__", None)
    tensor = tensors.get("logits") or (next(iter(tensors.values())) if len(tensors) == 1 else None)
    if tensor is None:
        raise ValueError(f"{path}: expected a tensor `logits`, found {', '.join(sorted(tensors))}")
    if tensor["dtype"] != "F32":
        raise ValueError(f"{path}: expected float32, found {tensor['dtype']}")
    return numpy.memmap(path, numpy.float32, "r", 8 + size + tensor["data_offsets"][0], tuple(tensor["shape"]))


def load(path):
    """A dump as an array [positions, vocab] that is read where it is used."""
    path = pathlib.Path(path)
    logits = load_safetensors(path) if path.suffix == ".safetensors" else numpy.load(path, mmap_mode="r")
    if logits.dtype != numpy.float32 or logits.ndim != 2:
        raise ValueError(f"{path}: expected float32 [positions, vocab], found {logits.dtype} {list(logits.shape)}")
    return logits


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))


def compare(reference, candidate):
    """Divergence of each position in nats, and whether both have the same first token there."""
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes differ: {list(reference.shape)} and {list(candidate.shape)}")
    divergence, same = [], []
    for first in range(0, len(reference), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        p, q = (log_softmax(numpy.asarray(dump[rows], dtype=numpy.float64)) for dump in (reference, candidate))
        divergence.append((numpy.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    return numpy.concatenate(divergence), numpy.concatenate(same)


def summarize(name, reference, candidate):
    divergence, same = compare(reference, candidate)
    return {"pair": name, "positions": len(same), "mean_kl": float(divergence.mean()),
            "kl_99": float(numpy.percentile(divergence, 99)), "same_first": float(same.mean())}


def offgraph_pairs(flags):
    """Summaries of offgraph's exports.

    The default mode rounds activations, and keeps results in fp32; the mode of exact products does the latter alone, and
    the exact mode rounds results to the program's types.
    """
    program = runners.offgraph_program()
    BENCH.mkdir(exist_ok=True)
    rows = []
    for name in models.EXPORTS:
        with tempfile.TemporaryDirectory(dir=BENCH) as folder:
            def dump(mode, *options):
                path = f"{folder}/{mode}.npy"
                run_quietly([program, "run", models.path(flags.models, name), "--threads", flags.threads, "--file",
                             flags.text, "--logits", path, "--quiet", *options], f"logits of {name}, {mode}")
                return load(path)[: flags.tokens]

            default, products, exact = dump("default"), dump("products", "--exact-products"), dump("exact", "--exact")
            rows.append(summarize(f"offgraph {name}, default / exact products", products, default))
            rows.append(summarize(f"offgraph {name}, default / exact", exact, default))
            rows.append(summarize(f"offgraph {name}, exact / exact products", products, exact))
    return rows


def llama_pairs(flags):
    """Summaries of llama.cpp's types. The dumps are large, so they are made for this once."""
    program = environments.llama()
    BENCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BENCH) as folder:
        def dump(name):
            path = f"{folder}/{name}.npy"
            run_quietly([program, "logits", models.path(flags.models, name), "packed", flags.threads, flags.tokens,
                         flags.text, path], f"logits of {name}")
            return load(path)

        reference = dump(REFERENCE)
        return [summarize(f"llama.cpp {name} / {REFERENCE}", reference, dump(name)) for name in CANDIDATES]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs=3, action="append", default=[], metavar=("NAME", "REFERENCE", "CANDIDATE"))
    parser.add_argument("--no-offgraph", action="store_true", help="leave offgraph's exports out")
    parser.add_argument("--no-llama", action="store_true", help="leave llama.cpp's files out")
    parser.add_argument("--models", type=pathlib.Path, default=models.default_folder(), metavar="DIR")
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "text.txt", metavar="FILE")
    parser.add_argument("--tokens", type=int, default=2000, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    flags = parse()
    try:
        rows = [summarize(name, load(reference), load(candidate)) for name, reference, candidate in flags.pair]
        if not flags.no_offgraph:
            rows += offgraph_pairs(flags)
        if not flags.no_llama:
            rows += llama_pairs(flags)
    except (Unavailable, ValueError, OSError) as error:
        sys.exit(f"accuracy.py: {error}")
    if flags.json:
        print(json.dumps(rows, indent=2))
        return
    header = ["pair", "positions", "mean KL, nats", "KL, 99 %", "same first token"]
    print(report.draw_cells([header, *([row["pair"], f"{row['positions']:,}", f"{row['mean_kl']:.6f}",
                                        f"{row['kl_99']:.5f}", f"{100 * row['same_first']:.2f} %"] for row in rows)]))


if __name__ == "__main__":
    main()
