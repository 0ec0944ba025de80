"""Builds op cases; make_cases.py says what they are."""

import numpy as np
import torch

FLOATS = ["fp32", "fp16", "bf16"]
SCALAR_TYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "fp16": 5, "fp32": 6, "fp64": 7, "bool": 11,
                "bf16": 15, "uint16": 27, "uint32": 28, "uint64": 29}
NUMPY = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64, "bool": np.bool_}

rng = np.random.default_rng(1)
cases = []


def rounded(array, dtype):
    """The nearest values that `dtype` has: what a program of that type is given."""
    if dtype == "bf16":
        return torch.from_numpy(np.asarray(array, np.float32)).to(torch.bfloat16).double().numpy()
    kind = NUMPY.get(dtype, np.dtype(dtype) if dtype[0] in "iu" else None)
    cast = np.asarray(array).astype(kind)
    return cast.astype(np.float64) if dtype.startswith("fp") else cast


def number(value):
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    value = float(value)
    if not np.isfinite(value):
        return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"
    return float(f"{value:.9g}") if value != int(value) else int(value) if abs(value) < 2**53 else value


def tensor(dtype, array):
    array = np.asarray(array)
    return [dtype, list(array.shape), [number(v) for v in array.flatten()]]


class Input(np.ndarray):
    """A numpy array of rounded values that remembers its element type."""


def given(array, dtype="fp32"):
    result = np.asarray(rounded(array, dtype)).view(Input)
    result.dtype_name = dtype
    return result


def normal(*shape, dtype="fp32", scale=1.0):
    return given(np.round(rng.normal(size=shape) * scale, 3), dtype)


def integers(low, high, *shape, dtype="int32"):
    return given(rng.integers(low, high, size=shape), dtype)


def plain(array):
    return np.asarray(array)


def case(name, ops, inputs=None, out=None, values=None, chains=None, error=None, tol=None):
    """`out`: name -> (type, array), or a number for a value slot. Ops may be one [op, fields]."""
    entry = {"name": name, "ops": ops if isinstance(ops[0], list) else [ops]}
    if chains:
        entry["chains"] = chains
    if inputs:
        entry["in"] = {key: tensor(value.dtype_name, plain(value)) for key, value in inputs.items()}
    if values:
        entry["values"] = values
    if error:
        entry["error"] = error
    else:
        entry["out"] = {k: tensor(*v) if isinstance(v, tuple) else v for k, v in out.items()}
    if tol:
        entry["tol"] = tol
    assert all(entry["name"] != other["name"] for other in cases), name
    cases.append(entry)


def op(name, node, inputs, fields, result, dtype=None, **more):
    """One op whose fields that are inputs have the inputs' names, with the result `out`."""
    slots = {key: key for key in inputs}
    dtype = dtype or next(iter(inputs.values())).dtype_name
    case(name, [node, slots | {"out": "out"} | fields], inputs, {"out": (dtype, result)}, **more)


def refused(name, node, inputs, fields, error, **more):
    slots = {key: key for key in inputs}
    case(name, [node, slots | {"out": "out"} | fields], inputs, error=error, **more)
