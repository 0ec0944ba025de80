"""Reductions, sorting, norms, rotary embedding and attention."""

import numpy as np

from writer import FLOATS, case, given, integers, normal, op, plain, refused, rng

REDUCE = {
    "SumNode": np.sum, "MeanNode": np.mean, "ProdNode": np.prod, "MaxNode": np.max, "MinNode": np.min,
    "MedianNode": np.median, "VarNode": np.var, "StdNode": np.std,
    "LogSumExpNode": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
}
AXIS_LISTS = [([], False), ([1], False), ([-1], True), ([0, 2], False), ([-3, 1], True)]


def reductions():
    for node, function in REDUCE.items():
        for dtype in FLOATS:
            x = normal(2, 3, 4, dtype=dtype)
            for axes, keep in AXIS_LISTS if dtype == "fp32" else AXIS_LISTS[1:2]:
                axis = tuple(axes) if axes else None
                expected = function(plain(x), axis=axis, keepdims=keep)
                tol = [2**-6, 2**-6] if dtype == "bf16" else [2**-9, 2**-9] if dtype == "fp16" else None
                op(f"{node} {axes} {'kept ' if keep else ''}{dtype}", node, {"x": x}, {"axes": axes, "keepdims": keep},
                   expected, tol=tol)
    x = normal(2, 3, 4)
    for node, function in [("VarNode", np.var), ("StdNode", np.std)]:
        for ddof in [1, 2]:
            op(f"{node} ddof {ddof}", node, {"x": x}, {"axes": [1], "ddof": ddof}, function(plain(x), 1, ddof=ddof))
    for dtype, total in [("int32", "int32"), ("int64", "int64"), ("bool", "int32")]:
        x = integers(0, 2, 3, 4, dtype=dtype)
        op(f"SumNode {dtype}", "SumNode", {"x": x}, {"axes": [1]}, plain(x).sum(1), total)
    x = integers(-9, 9, 3, 4)
    for node, function in [("MaxNode", np.max), ("MinNode", np.min), ("ProdNode", np.prod)]:
        op(f"{node} int32", node, {"x": x}, {"axes": [-1]}, function(plain(x), axis=1))
    op("MeanNode int32", "MeanNode", {"x": x}, {"axes": [0]}, plain(x).mean(0), "fp32")
    for dtype in ["bool", "int32", "fp32"]:
        x = given([[0, 0, 1], [0, 0, 0], [1, 1, 1]], dtype)
        for axes, keep in [([], False), ([-1], False), ([0], True)]:
            axis = tuple(axes) if axes else None
            for node, function in [("AnyNode", np.any), ("AllNode", np.all)]:
                op(f"{node} {axes} {dtype}", node, {"x": x}, {"axes": axes, "keepdims": keep},
                   function(plain(x), axis=axis, keepdims=keep), "bool")
    for node, function in [("ArgmaxNode", np.argmax), ("ArgminNode", np.argmin)]:
        for dtype in FLOATS + ["int32"]:
            x = given(rng.permutation(24).reshape(2, 3, 4), dtype)
            for axis, keep in [(1, False), (-1, True)]:
                op(f"{node} {axis} {dtype}", node, {"x": x}, {"axis": axis, "keepdims": keep},
                   function(plain(x), axis=axis, keepdims=keep), "uint32")
    for dtype in FLOATS + ["int32", "int64"]:
        x = given([[1, 2, 3], [4, -5, 6]], dtype)
        for axis in [0, -1]:
            up, down = plain(x).cumsum(axis), np.flip(np.flip(plain(x), axis).cumsum(axis), axis)
            for reverse, inclusive in [(False, True), (True, True), (False, False), (True, False)]:
                expected = (down if reverse else up) - (0 if inclusive else plain(x))
                op(f"CumsumNode {axis} {'reverse ' if reverse else ''}{'' if inclusive else 'exclusive '}{dtype}",
                   "CumsumNode", {"x": x}, {"axis": axis, "reverse": reverse, "inclusive": inclusive},
                   expected)
    for dtype in FLOATS:
        x = normal(2, 3, 4, dtype=dtype)
        for axis in [-1, 1]:
            e = np.exp(plain(x))
            for precise in [False, True]:
                op(f"SoftmaxNode {axis} {'precise ' if precise else ''}{dtype}", "SoftmaxNode", {"x": x},
                   {"axis": axis, "precise": precise}, e / e.sum(axis, keepdims=True))
        x = given(rng.permutation(12).reshape(3, 4), dtype)
        for axis in [0, -1]:
            op(f"SortNode {axis} {dtype}", "SortNode", {"x": x}, {"axis": axis}, np.sort(plain(x), axis))
            op(f"ArgsortNode {axis} {dtype}", "ArgsortNode", {"x": x}, {"axis": axis}, np.argsort(plain(x), axis),
               "uint32")
    x = given(rng.permutation(8) - 4, "int64")
    op("SortNode int64", "SortNode", {"x": x}, {"axis": 0}, np.sort(plain(x)))
    # Of a partition only the kth element's place is known: look at that.
    for kth, values in [(2, None), (-2, None), ("k", {"k": 3})]:
        place = values["k"] if values else kth
        for node in ["PartitionNode", "ArgPartitionNode"]:
            taken = [node, {"x": "x", "out": "parted", "kth": kth, "axis": -1}], \
                    ["TakeNode", {"x": "parted", "out": "out", "index": place, "axis": 0}]
            order = np.argsort(plain(x))
            expected = plain(x)[order[place]] if node == "PartitionNode" else order[place]
            case(f"{node} {kth}", list(taken), {"x": x},
                 {"out": ("int64" if node == "PartitionNode" else "uint32", expected)}, values)
        refused(f"PartitionNode {kth} too far", "PartitionNode", {"x": given([1, 2])}, {"kth": kth if values else 9,
                "axis": 0}, "of an axis of 2", values=values)


def norms():
    for dtype in FLOATS:
        x, weight, bias = normal(2, 3, 8, dtype=dtype), normal(8, dtype=dtype), normal(8, dtype=dtype)
        inverse = 1 / np.sqrt((plain(x) ** 2).mean(-1, keepdims=True) + 1e-3)
        tol = [2**-6, 2**-6] if dtype == "bf16" else [2**-9, 2**-9] if dtype == "fp16" else None
        op(f"RMSNormNode {dtype}", "RMSNormNode", {"x": x, "weight": weight}, {"eps": 1e-3},
           plain(x) * inverse * plain(weight), tol=tol)
        op(f"RMSNormNode no weight {dtype}", "RMSNormNode", {"x": x}, {"eps": 1e-3}, plain(x) * inverse, tol=tol)
        centred = plain(x) - plain(x).mean(-1, keepdims=True)
        centred = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
        for name, more, expected in [("", {}, centred), ("weight", {"weight": weight}, centred * plain(weight)),
                                     ("weight bias", {"weight": weight, "bias": bias},
                                      centred * plain(weight) + plain(bias))]:
            op(f"LayerNormNode {name} {dtype}", "LayerNormNode", {"x": x} | more, {"eps": 1e-3}, expected, tol=tol)
    x = normal(2, 8)
    refused("RMSNormNode weight", "RMSNormNode", {"x": x, "weight": normal(7)}, {"eps": 1e-3}, "RMSNormNode")
    refused("LayerNormNode weight", "LayerNormNode", {"x": x, "weight": normal(7)}, {"eps": 1e-3}, "LayerNormNode")


def rotate(x, positions, dims, traditional, base, scale, freqs=None):
    """x [B, H, T, D], positions [B, T]"""
    half = dims // 2
    inverse = 1 / freqs if freqs is not None else base ** (-np.arange(half) * 2 / dims)
    angles = (positions * scale)[:, None, :, None] * inverse
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.array(x)
    first, second = (slice(0, dims, 2), slice(1, dims, 2)) if traditional else (slice(0, half), slice(half, dims))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def rope():
    for dtype in FLOATS:
        x = normal(2, 2, 3, 8, dtype=dtype)
        for dims in [8, 4]:
            for traditional in [False, True]:
                fields = {"dims": dims, "traditional": traditional, "base": 100.0, "scale": 0.5, "offset": "n"}
                expected = rotate(plain(x), np.tile(np.arange(3) + 5, (2, 1)), dims, traditional, 100.0, 0.5)
                kind = "traditional " if traditional else ""
                op(f"RopeNode {dims} {kind}{dtype}", "RopeNode", {"x": x}, fields, expected, values={"n": 5},
                   tol=[2**-6, 2**-6] if dtype == "bf16" else [2**-9, 2**-9] if dtype == "fp16" else None)
    x = normal(2, 1, 3, 8)
    freqs = given([1, 4, 16, 64])
    expected = rotate(plain(x), np.tile(np.arange(3) + 5, (2, 1)), 8, False, 0, 1, plain(freqs))
    op("RopeNode freqs", "RopeNode", {"x": x, "freqs": freqs}, {"dims": 8, "offset": "n"}, expected, values={"n": 5})
    expected = rotate(plain(x), np.tile(np.arange(3), (2, 1)) + [[7], [2]], 8, False, 500000.0, 1)
    for dtype in ["int32", "int64"]:
        op(f"RopeNode positions {dtype}", "RopeNode", {"x": x, "offset": given([7, 2], dtype)}, {"dims": 8}, expected)
    op("RopeNode one position", "RopeNode", {"x": x, "offset": given(5, "int32")}, {"dims": 8},
       rotate(plain(x), np.tile(np.arange(3) + 5, (2, 1)), 8, False, 500000.0, 1))
    for dims in [-2, 0, 3, 10]:
        refused(f"RopeNode {dims} dims", "RopeNode", {"x": x}, {"dims": dims, "offset": "n"}, "dims", values={"n": 0})
    refused("RopeNode far", "RopeNode", {"x": x}, {"dims": 8, "offset": "n"}, "beyond 32 bits", values={"n": 2**40})
    refused("RopeNode freqs size", "RopeNode", {"x": x, "freqs": given([1, 2])}, {"dims": 8, "offset": "n"}, "freqs",
            values={"n": 0})


def attention():
    for dtype in FLOATS:
        q, k, v = normal(1, 4, 3, 8, dtype=dtype), normal(1, 2, 5, 8, dtype=dtype), normal(1, 2, 5, 8, dtype=dtype)
        scores = 0.3 * np.einsum("bhtd,bhsd->bhts", plain(q), np.repeat(plain(k), 2, 1))
        floats, flags = normal(3, 5, dtype=dtype), given(rng.random((1, 1, 3, 5)) < 0.7, "bool")
        plain(flags)[..., 0] = True
        lower_right = np.tril(np.ones((3, 5), bool), 2)
        for name, inputs, causal, biased in [
            ("", {}, False, scores),
            ("causal", {}, True, np.where(lower_right, scores, -np.inf)),
            ("added mask", {"mask": floats}, False, scores + plain(floats)),
            ("bool mask", {"mask": flags}, False, np.where(plain(flags), scores, -np.inf)),
        ]:
            weights = np.exp(biased - biased.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            expected = np.einsum("bhts,bhsd->bhtd", weights, np.repeat(plain(v), 2, 1))
            op(f"SdpaNode {name} {dtype}", "SdpaNode", {"q": q, "k": k, "v": v} | inputs,
               {"scale": 0.3, "causal": causal}, expected,
               tol=[2**-6, 2**-6] if dtype == "bf16" else [2**-9, 2**-9] if dtype == "fp16" else None)
    inputs = {"q": normal(1, 2, 3, 8), "k": normal(1, 2, 3, 8), "v": normal(1, 2, 3, 8), "mask": normal(3, 3)}
    refused("SdpaNode causal and mask", "SdpaNode", inputs, {"scale": 1.0, "causal": True}, "both causal and a mask")
    inputs = {"q": normal(1, 3, 3, 8), "k": normal(1, 2, 3, 8), "v": normal(1, 2, 3, 8)}
    refused("SdpaNode heads", "SdpaNode", inputs, {"scale": 1.0}, "SdpaNode")
