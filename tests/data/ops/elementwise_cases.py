"""Ops that work element by element."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from writer import FLOATS, SCALAR_TYPES, given, normal, op, plain, refused, rounded

erf = np.vectorize(math.erf)
sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731

# node: (function, values, integers give floats)


UNARY = {
    "AbsNode": (np.abs, [-2.5, -0.0, 0.25, 3], False),
    "ArccosNode": (np.arccos, [-1, -0.5, 0, 0.75, 1], True),
    "ArccoshNode": (np.arccosh, [1, 1.5, 4, 100], True),
    "ArcsinNode": (np.arcsin, [-1, -0.5, 0, 0.75, 1], True),
    "ArcsinhNode": (np.arcsinh, [-3, 0, 0.5, 20], True),
    "ArctanNode": (np.arctan, [-3, 0, 0.5, 20], True),
    "ArctanhNode": (np.arctanh, [-0.75, 0, 0.5], True),
    "CeilNode": (np.ceil, [-1.5, -0.25, 0, 0.25, 2.75, 3], False),
    "CosNode": (np.cos, [-3, 0, 0.5, 20], True),
    "CoshNode": (np.cosh, [-3, 0, 0.5, 5], True),
    "ErfNode": (erf, [-3, -0.5, 0, 0.5, 1], True),
    "ExpNode": (np.exp, [-3, 0, 0.5, 5], True),
    "Expm1Node": (np.expm1, [-3, 0, 0.5, 5, 0.001953125], True),
    "FloorNode": (np.floor, [-1.5, -0.25, 0, 0.25, 2.75, 3], False),
    "Log10Node": (np.log10, [0.5, 1, 100, 2.5], True),
    "Log1pNode": (np.log1p, [-0.5, 0, 1, 0.001953125], True),
    "Log2Node": (np.log2, [0.5, 1, 64, 2.5], True),
    "LogNode": (np.log, [0.5, 1, 64, 2.5], True),
    "NegNode": (np.negative, [-2.5, 0, 3], False),
    "ReciprocalNode": (lambda x: 1 / x, [-4, 0.5, 3], True),
    "RsqrtNode": (lambda x: 1 / np.sqrt(x), [0.25, 2, 9], True),
    "SigmoidNode": (sigmoid, [-8, -0.5, 0, 3], True),
    "SignNode": (np.sign, [-2.5, 0, 3], False),
    "SinNode": (np.sin, [-3, 0, 0.5, 20], True),
    "SinhNode": (np.sinh, [-3, 0, 0.5, 5], True),
    "SqrtNode": (np.sqrt, [0, 0.25, 2, 9], True),
    "SquareNode": (np.square, [-2.5, 0, 3], False),
    "TanNode": (np.tan, [-3, 0, 0.5, 1.25], True),
    "TanhNode": (np.tanh, [-3, 0, 0.5, 9], True),
    "TruncNode": (np.trunc, [-2.75, -0.5, 0, 0.5, 2.75], False),
    "SiluNode": (lambda x: x * sigmoid(x), [-8, -0.5, 0, 3], None),
}


def unary():
    for node, (function, values, promotes) in UNARY.items():
        for dtype in FLOATS:
            x = given(values, dtype)
            op(f"{node} {dtype}", node, {"x": x}, {}, function(plain(x)))
        whole = [v for v in values if v == int(v)]
        if promotes is not None:
            x = given(whole, "int32")
            op(f"{node} int32", node, {"x": x}, {}, function(plain(x).astype(float)), "fp32" if promotes else "int32")
    for dtype in FLOATS:
        x = given([-8, -1.5, -0.25, 0, 0.5, 3], dtype)
        for kind in ["none", "tanh"]:
            expected = F.gelu(torch.from_numpy(plain(x).astype(np.float64)), approximate=kind).numpy()
            op(f"GeluNode {kind} {dtype}", "GeluNode", {"x": x}, {"approximate": kind}, expected)
        x = given([0.5, 1.5, -2.5, 2.46, 12.34], dtype)
        for decimals in [0, 1, -1]:
            scaled = plain(x) * 10.0**decimals
            op(f"RoundNode {decimals} decimals {dtype}", "RoundNode", {"x": x}, {"decimals": decimals},
               np.round(scaled) / 10.0**decimals)
        # A scale of 10^5 is beyond fp16.
        x = given([0.125, 1.5, -2.25], dtype)
        op(f"RoundNode 5 decimals {dtype}", "RoundNode", {"x": x}, {"decimals": 5}, plain(x))
        for target in ["fp32", "fp16", "bf16", "fp64", "int32", "int64", "uint8", "bool"]:
            x = given([0, 1, 2.5, 100.75], dtype)
            op(f"AsTypeNode {dtype} to {target}", "AsTypeNode", {"x": x}, {"scalar_type": SCALAR_TYPES[target]},
               rounded(plain(x), target), target)
        x = given([[0, 1.5], [-2, np.nan]], dtype)
        for node in ["IdCopyNode", "ContiguousNode"]:
            op(f"{node} {dtype}", node, {"x": x}, {}, plain(x))
        op(f"LogicalNotNode {dtype}", "LogicalNotNode", {"x": x}, {}, plain(x) == 0, "bool")
    for dtype in ["uint8", "int8", "int16", "int32", "int64", "uint32"]:
        x = given([0, 1, 100], dtype)
        op(f"BitwiseInvertNode {dtype}", "BitwiseInvertNode", {"x": x}, {}, ~plain(x))
        op(f"AsTypeNode {dtype} to fp32", "AsTypeNode", {"x": x}, {"scalar_type": 6}, plain(x), "fp32")
        op(f"LogicalNotNode {dtype}", "LogicalNotNode", {"x": x}, {}, plain(x) == 0, "bool")
    flags = given([False, True], "bool")
    op("BitwiseInvertNode bool", "BitwiseInvertNode", {"x": flags}, {}, [True, False])
    op("LogicalNotNode bool", "LogicalNotNode", {"x": flags}, {}, [True, False])
    op("AsTypeNode bool to int64", "AsTypeNode", {"x": flags}, {"scalar_type": 4}, [0, 1], "int64")
    refused("AsTypeNode complex", "AsTypeNode", {"x": flags}, {"scalar_type": 9}, "element type 9 is not known")
    refused("BitwiseInvertNode fp32", "BitwiseInvertNode", {"x": normal(2)}, {}, "BitwiseInvertNode")
    refused("GeluNode unknown", "GeluNode", {"x": normal(2)}, {"approximate": "erf"}, "expected none or tanh")

BINARY = {
    "AddNode": np.add, "SubtractNode": np.subtract, "MultiplyNode": np.multiply, "MaximumNode": np.maximum,
    "MinimumNode": np.minimum,
}
COMPARE = {
    "EqualNode": np.equal, "NotEqualNode": np.not_equal, "LessNode": np.less, "LessEqualNode": np.less_equal,
    "GreaterNode": np.greater, "GreaterEqualNode": np.greater_equal, "LogicalAndNode": np.logical_and,
    "LogicalOrNode": np.logical_or,
}
BITS = {"BitwiseAndNode": np.bitwise_and, "BitwiseOrNode": np.bitwise_or, "BitwiseXorNode": np.bitwise_xor}


def binary():
    values_a, values_b = [[1.5, -2, 0], [3, 4, -5.5]], [[2, -2, 1]]
    for dtype in FLOATS + ["int32", "int64"]:
        a, b = given(values_a, dtype), given(values_b, dtype)
        for node, function in BINARY.items():
            op(f"{node} {dtype}", node, {"a": a, "b": b}, {}, function(plain(a), plain(b)))
        for node, function in COMPARE.items():
            op(f"{node} {dtype}", node, {"a": a, "b": b}, {}, function(plain(a), plain(b)), "bool")
        wide = dtype if dtype in FLOATS else "fp32"
        op(f"DivideNode {dtype}", "DivideNode", {"a": a, "b": b}, {}, plain(a) / plain(b), wide)
        op(f"Atan2Node {dtype}", "Atan2Node", {"a": a, "b": b}, {}, np.arctan2(plain(a), plain(b)), wide)
        op(f"LogAddExpNode {dtype}", "LogAddExpNode", {"a": a, "b": b}, {}, np.logaddexp(plain(a), plain(b)), wide)
        op(f"FloorDivideNode {dtype}", "FloorDivideNode", {"a": a, "b": b}, {}, plain(a) // plain(b))
        op(f"RemainderNode {dtype}", "RemainderNode", {"a": a, "b": b}, {}, plain(a) % plain(b))
        base, exponent = given([[2, 3, 0], [1, -2, 5]], dtype), given([[3, 2, 1]], dtype)
        op(f"PowerNode {dtype}", "PowerNode", {"a": base, "b": exponent}, {}, plain(base) ** plain(exponent))
        low, high = given(-1, dtype), given(2, dtype)
        for bounds in [{"a_min": low, "a_max": high}, {"a_min": low}, {"a_max": high}, {}]:
            expected = np.clip(plain(a), *(plain(bounds[k]) if k in bounds else None for k in ["a_min", "a_max"])) \
                if bounds else plain(a)
            op(f"ClipNode {' '.join(bounds)} {dtype}", "ClipNode", {"x": a} | bounds, {}, expected)
        condition = given([[True, False, True]], "bool")
        inputs = {"condition": condition, "x": a, "y": b}
        op(f"WhereNode {dtype}", "WhereNode", inputs, {}, np.where(plain(condition), plain(a), plain(b)), dtype)
    for dtype in ["bool", "uint8", "int32", "int64"]:
        a, b = given([[0, 1, 1]], dtype), given([[1], [0]], dtype)
        for node, function in BITS.items():
            op(f"{node} {dtype}", node, {"a": a, "b": b}, {}, function(plain(a), plain(b)))
    a, b = given([True, True, False], "bool"), given([True, False, False], "bool")
    op("LogicalAndNode bool", "LogicalAndNode", {"a": a, "b": b}, {}, [True, False, False])
    op("LogicalOrNode bool", "LogicalOrNode", {"a": a, "b": b}, {}, [True, True, False])
    # Types that differ: their common type.
    a, b = given([1.5, 2], "bf16"), given([1, 3], "int32")
    op("AddNode bf16 and int32", "AddNode", {"a": a, "b": b}, {}, [2.5, 5], "bf16")
    op("MultiplyNode fp32 and bf16", "MultiplyNode", {"a": given([0.1, 3]), "b": a}, {}, [0.15, 6], "fp32")
    # Integers by 0 and by -1, which a processor traps on.
    a, b = given([7, -7, 5, -(2**31), 6], "int32"), given([2, 2, 0, -1, -1], "int32")
    op("FloorDivideNode traps", "FloorDivideNode", {"a": a, "b": b}, {}, [3, -4, 0, -(2**31), -6])
    op("RemainderNode traps", "RemainderNode", {"a": a, "b": b}, {}, [1, 1, 0, 0, 0])
    a, b = given([7, 200], "uint8"), given([0, 7], "uint8")
    op("FloorDivideNode uint8", "FloorDivideNode", {"a": a, "b": b}, {}, [0, 28])
    op("PowerNode negative", "PowerNode", {"a": given([3, 5], "int32"), "b": given([-1, 2], "int32")}, {}, [1, 25])
    refused("AddNode shapes", "AddNode", {"a": normal(2), "b": normal(3)}, {}, "AddNode")
    refused("BitwiseAndNode fp32", "BitwiseAndNode", {"a": normal(2), "b": normal(2)}, {}, "BitwiseAndNode")
