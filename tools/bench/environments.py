"""The peers' environments: Python virtual environments in .bench/ from the versions pinned in dependencies.env.

A variable names a Python that has the peer's packages already, which is then used as it is:
OFFGRAPH_BENCH_LLAMA for llama.cpp, OFFGRAPH_BENCH_OPENVINO for OpenVINO GenAI.
"""
import functools
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCH = ROOT / ".bench"


class Unavailable(Exception):
    """Why a peer or a file cannot be had, and what to do."""


def pinned(name):
    """The packages of a list in dependencies.env."""
    script = f'source "{ROOT}/dependencies.env" && echo ${name}'
    packages = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split()
    if not packages:
        raise Unavailable(f"dependencies.env has no {name}")
    return packages


def run_quietly(command, what, **options):
    """Runs a command; its output is shown only if it fails."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != 0:
        raise Unavailable(f"{what} failed: {done.stdout.strip()[-2000:]}")


def environment(name, packages, build=None):
    """The Python of the environment .bench/<name>, made first if it is not there in these versions.

    build: variables for packages that are compiled here. Their wheel is then not taken from pip's cache, which does
    not know how it was compiled."""
    given = os.environ.get(f"OFFGRAPH_BENCH_{name.upper()}")
    if given:
        return pathlib.Path(given)
    folder = BENCH / name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = " ".join(packages) + "".join(f"\n{key}={value}" for key, value in (build or {}).items())
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing {' '.join(packages)} into {folder.relative_to(ROOT)}"
          f"{' (it is compiled: some minutes)' if build else ''}", file=sys.stderr)
    run_quietly([sys.executable, "-m", "venv", "--clear", folder],
                "python3 -m venv (is python3-venv installed?)")
    run_quietly([python, "-m", "pip", "install", "--disable-pip-version-check", *(["--no-cache-dir"] if build else []),
                 *packages], "pip install", env={**os.environ, **(build or {})})
    stamp.write_text(wanted)
    return python


def llama_python():
    """The Python of llama.cpp's environment; it has numpy, too."""
    flags = f"-include {HERE}/llama_build.h"
    return environment("llama", pinned("BENCH_LLAMA"),
                       {"CMAKE_ARGS": "-DGGML_NATIVE=ON", "CFLAGS": flags, "CXXFLAGS": flags})


@functools.cache
def llama():
    """The program over llama.cpp's library (llama_peer.c), compiled."""
    site = pathlib.Path(subprocess.run([llama_python(), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
                                       check=True, capture_output=True, text=True).stdout.strip())
    library = site / "llama_cpp" / "lib"
    if not (site / "include" / "llama.h").exists():
        raise Unavailable(f"{site} has no include/llama.h: it is not the pinned llama-cpp-python")
    BENCH.mkdir(exist_ok=True)
    program = BENCH / "llama_peer"
    run_quietly([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", "-I", site / "include",
                 HERE / "llama_peer.c", "-o", program, "-L", library, f"-Wl,-rpath,{library}",
                 f"-Wl,-rpath-link,{library}", "-lllama"], "compiling llama_peer.c")
    return program


def openvino():
    """The Python that has OpenVINO GenAI."""
    return environment("openvino", pinned("BENCH_OPENVINO"))
