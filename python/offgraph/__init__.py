"""Runs programs that ExecuTorch exported for its MLX backend, on Linux, from ExecuTorch's own Python runtime.

    import offgraph
    model = offgraph.load("model.pte")
    logits = model.execute([input_ids, cache_position])[0]

`load` brings the plugin (liboffgraph_executorch.so) into ExecuTorch's runtime, reads the layout of the KV cache from
the program's own constant methods, defines the cache, and loads the method. A call whose first position is 0 starts
over; every other call goes on where the last one ended.

The plugin is taken from the environment variable OFFGRAPH_EXECUTORCH_LIBRARY, else from this package's folder, else
from the installation or the build folder that the package lies in.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any, Sequence

from executorch.runtime import Runtime  # before the plugin, which then shares its copy of ExecuTorch's library

__all__ = ["Cache", "Error", "Layout", "Memory", "Model", "limit_step_memory", "load"]

_LIBRARY = "liboffgraph_executorch.so"
_LIBRARY_VARIABLE = "OFFGRAPH_EXECUTORCH_LIBRARY"

# A definition under the empty key is for the method that is loaded next, so both happen under this lock.
_loading = threading.Lock()
_numbers = itertools.count()


class Error(RuntimeError):
    """What the plugin refused or could not do; the text says what, where, and what to do about it."""


class _CMemory(ctypes.Structure):
    _fields_ = [("in_use", ctypes.c_int64), ("reserved", ctypes.c_int64), ("peak", ctypes.c_int64)]


def _library_path() -> Path:
    if named := os.environ.get(_LIBRARY_VARIABLE):
        return Path(named)
    here = Path(__file__).resolve().parent
    # Beside this file (pip); PREFIX/lib/offgraph/python/offgraph (cmake --install); python/offgraph (source tree).
    candidates = [here / _LIBRARY, here.parents[2] / _LIBRARY, here.parents[1] / "build" / _LIBRARY]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise Error(f"{_LIBRARY} is not in any of {looked}. Build it (make build), or set {_LIBRARY_VARIABLE} to its path.")


@functools.lru_cache(maxsize=1)
def _plugin() -> ctypes.CDLL:
    """The plugin, loaded once: that registers the backend."""
    path = _library_path()
    try:
        plugin = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Error(f"{path} cannot be loaded: {error}") from error
    key = ctypes.c_char_p
    signatures = {
        "offgraph_define_cache": (ctypes.c_int, [key, ctypes.c_char_p]),
        "offgraph_cache_length": (ctypes.c_int64, [key]),
        "offgraph_cache_memory": (ctypes.c_int, [key, ctypes.POINTER(_CMemory)]),
        "offgraph_cache_rewind": (ctypes.c_int, [key, ctypes.c_int64]),
        "offgraph_cache_clear": (ctypes.c_int, [key]),
        "offgraph_name_cache": (ctypes.c_int, [key]),
        "offgraph_limit_step_memory": (ctypes.c_int, [ctypes.c_int64]),
        "offgraph_error": (ctypes.c_char_p, []),
        "offgraph_clear_error": (None, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(plugin, name)
        function.restype, function.argtypes = result, arguments
    return plugin


def _message() -> str:
    return _plugin().offgraph_error().decode(errors="replace")


def _call(name: str, *arguments: Any) -> int:
    """Calls a function of the plugin's C interface. A negative result is its failure."""
    result = getattr(_plugin(), name)(*arguments)
    if result < 0:
        raise Error(_message())
    return result


def _run(what: str, call: Any) -> Any:
    """Calls into ExecuTorch; a failure in the plugin gets the plugin's message, any other stays as it is."""
    _plugin().offgraph_clear_error()
    try:
        return call()
    except Exception as error:
        if message := _message():
            raise Error(f"{what}: {message}") from error
        raise


@dataclasses.dataclass(frozen=True)
class Layout:
    """The KV cache as the program's constant methods describe it: one number per cache of the model."""

    windows: tuple[int, ...]  # how many positions a query sees; 0: all of them
    kv_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    max_context: int
    prefill_chunk: int  # the longest step


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of K and V."""

    in_use: int  # of the tokens in the cache
    reserved: int  # held now
    peak: int  # the most that was held


class Cache:
    """The KV cache of a loaded model."""

    def __init__(self, key: str):
        self._key = key.encode()

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return _call("offgraph_cache_length", self._key)

    @property
    def memory(self) -> Memory:
        memory = _CMemory()
        _call("offgraph_cache_memory", self._key, ctypes.byref(memory))
        return Memory(memory.in_use, memory.reserved, memory.peak)

    def rewind(self, length: int) -> None:
        """Forgets all tokens from position `length` on. Refused where a window has lost what the next token needs."""
        _call("offgraph_cache_rewind", self._key, length)

    def clear(self) -> None:
        """Forgets all tokens; the memory is kept for what follows."""
        _call("offgraph_cache_clear", self._key)


class Model:
    """A loaded method. `layout` is None where the program has no KV cache outside of its graph, and `cache` where this
    method does not use it."""

    def __init__(self, path: str, program: Any, method: Any, layout: Layout | None, cache: Cache | None):
        self._path = path
        self._program = program  # owns what the method runs on
        self._method = method
        self.layout = layout
        self.cache = cache

    @property
    def metadata(self) -> Any:
        """ExecuTorch's description of the method's inputs and outputs."""
        return self._method.metadata

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs the method: a list of tensors (or numbers) in, a list of tensors out."""
        return _run(self._path, lambda: self._method.execute(inputs))


def limit_step_memory(limit: int) -> None:
    """Limits the bytes that one call of a model may take beside weights, mutable buffers and cache; 0: no limit.

    Holds for all models of the process, from the next call on, and for what a model takes once when it is loaded. The
    count is an upper bound that is known before anything is taken; a call that would pass it raises Error. For programs
    that nobody vouches for.
    """
    _call("offgraph_limit_step_memory", limit)


def _read_layout(program: Any) -> Layout | None:
    def constant(name: str) -> tuple[int, ...]:
        value = program.load_method(name).execute([])[0]
        values = value.flatten().tolist() if hasattr(value, "flatten") else [value]
        return tuple(int(number) for number in values)

    if not {"get_windows", "get_max_ctx_len"} <= program.method_names:
        return None
    sizes = {name: constant(name) if name in program.method_names else () for name in ("get_kv_heads", "get_head_dims")}
    (max_context,) = constant("get_max_ctx_len")
    has_chunk = "get_prefill_chunk_size" in program.method_names
    (prefill_chunk,) = constant("get_prefill_chunk_size") if has_chunk else (max_context,)
    return Layout(
        windows=constant("get_windows"),
        kv_heads=sizes["get_kv_heads"],
        head_dims=sizes["get_head_dims"],
        max_context=max_context,
        prefill_chunk=prefill_chunk,
    )


def _definition(layout: Layout | None, options: dict[str, Any]) -> dict[str, Any] | None:
    """What offgraph_define_cache takes: the options that were given, the rest from the program. None where neither
    says how long the cache is and how far its layers look back."""
    definition = {name: value for name, value in options.items() if value is not None}
    if layout is not None:
        definition.setdefault("windows", list(layout.windows))
        definition.setdefault("capacity", layout.max_context)
        definition.setdefault("max_step", layout.prefill_chunk)
    return definition if {"windows", "capacity"} <= definition.keys() else None


def load(
    path: str | os.PathLike[str],
    method: str = "forward",
    *,
    capacity: int | None = None,
    kv_dtype: str = "same",
    windows: int | Sequence[int] | None = None,
    sinks: int | None = None,
    initial_capacity: int | None = None,
    max_step: int | None = None,
    rewind_reserve: int | None = None,
) -> Model:
    """Loads a method of a .pte file.

    Args:
        path: The file.
        method: The method's name.
        capacity: Tokens that the cache may hold; default: the context that the program was exported for.
        kv_dtype: Storage of K and V: "fp32", "fp16", "bf16", or "same", as the model computes them.
        windows: How far back each cache looks, one number per cache (0: all the way), or 0 for all; default: what the
            program says. Another window than the model's changes what it computes.
        sinks: First tokens that stay visible for ever, in caches with a window; default 0.
        initial_capacity: Rows that each cache takes at first; they double from there.
        max_step: The longest step, in tokens, that caches with a window admit; default: the program's prefill chunk.
        rewind_reserve: Rewinds by up to so many tokens are exact in caches with a window; default 0.

    Raises:
        Error: what the plugin refused, with its reason. Errors of ExecuTorch's own stay as they are.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise Error(f"{path}: no such file")
    _plugin()
    program = Runtime.get().load_program(Path(path))
    if method not in program.method_names:
        raise Error(f"{path}: has no method {method!r}, but {', '.join(sorted(program.method_names))}")
    layout = _read_layout(program)
    definition = _definition(
        layout,
        {
            "capacity": capacity,
            "kv_dtype": kv_dtype,
            "windows": windows if windows is None or isinstance(windows, int) else list(windows),
            "sinks": sinks,
            "initial_capacity": initial_capacity,
            "max_step": max_step,
            "rewind_reserve": rewind_reserve,
        },
    )
    key = f"python-{next(_numbers)}"
    cache = None
    with _loading:
        if definition is not None:
            _call("offgraph_define_cache", b"", json.dumps(definition).encode())
        loaded = _run(path, lambda: program.load_method(method))
        # Refused where this method made no cache: the last one that was made has a name then.
        if definition is not None and _plugin().offgraph_name_cache(key.encode()) == 0:
            cache = Cache(key)
    return Model(path, program, loaded, layout, cache)
