"""Tensors made of numbers, and random bits."""

import numpy as np

from writer import FLOATS, SCALAR_TYPES, case, given, normal, op, plain, refused, rng, rounded


def creation():
    for dtype in FLOATS + ["int32", "int64", "uint8"]:
        number_type = {"scalar_type": SCALAR_TYPES[dtype]}
        case(f"ARangeNode {dtype}", ["ARangeNode", {"out": "out", "start": 2, "stop": "n", "step": 3} | number_type],
             out={"out": (dtype, np.arange(2, 12, 3))}, values={"n": 12})
        case(f"FullNode {dtype}", ["FullNode", {"out": "out", "shape": [2, "n"], "v": 2.5} | number_type],
             out={"out": (dtype, rounded(np.full((2, 3), 2.5), dtype))}, values={"n": 3})
        case(f"FullNode value {dtype}", ["FullNode", {"out": "out", "shape": [2], "v": "v"} | number_type],
             out={"out": (dtype, [7, 7])}, values={"v": 7})
        op(f"FullLikeNode {dtype}", "FullLikeNode", {"x": given([[1, 2]], dtype)}, {"v": "v"}, [[3, 3]],
           values={"v": 3.0})
        op(f"FullLikeNode to {dtype}", "FullLikeNode", {"x": normal(1, 2)}, {"v": 1.0} | number_type, [[1, 1]], dtype)
        for n, m, k in [(3, 4, 0), (3, 3, 1), (2, 4, -1)]:
            case(f"TriNode {n} {m} {k} {dtype}", ["TriNode", {"out": "out", "n": n, "m": "m", "k": k} | number_type],
                 out={"out": (dtype, np.tri(n, m, k))}, values={"m": m})
    for dtype in FLOATS + ["int32", "int64", "bool"]:
        x = given(rng.integers(0 if dtype == "bool" else -9, 2, (2, 3, 4)), dtype)
        for k in [0, 1, -2, 2**31 - 1, -(2**31)]:
            near = max(-9, min(9, k))
            op(f"TrilNode {k} {dtype}", "TrilNode", {"x": x}, {"k": k}, np.tril(plain(x), near))
            op(f"TriuNode {k} {dtype}", "TriuNode", {"x": x}, {"k": k}, np.triu(plain(x), near))
    case("TriNode far", ["TriNode", {"out": "out", "n": 2, "m": 2, "k": -(2**31), "scalar_type": 6}],
         out={"out": ("fp32", np.zeros((2, 2)))})
    case("ARangeNode native", ["ARangeNode", {"out": "out", "start": 5, "stop": 1, "step": -2}],
         out={"out": ("int32", [5, 3])})
    case("ARangeNode empty", ["ARangeNode", {"out": "out", "start": 5, "stop": 1, "step": 2}],
         out={"out": ("int32", np.zeros(0, int))})
    big = 2**60
    case("ARangeNode large", ["ARangeNode", {"out": "out", "start": "a", "stop": big + 5, "step": 2, "scalar_type": 4}],
         out={"out": ("int64", [big, big + 2, big + 4])}, values={"a": big})
    # Beyond the integers that the type counts up to one by one, each element is still the nearest to its own.
    for dtype, first in [("bf16", 600), ("fp16", 3000)]:
        fields = {"out": "all", "start": 0, "stop": first + 4, "step": 1, "scalar_type": SCALAR_TYPES[dtype]}
        case(f"ARangeNode {dtype} far", [["ARangeNode", fields], ["SliceNode", {"x": "all", "out": "out", "axis": 0,
             "start": first, "stop": first + 4}]],
             out={"out": (dtype, rounded(np.arange(first, first + 4), dtype))}, tol=[0, 0])
    case("FullNode int64 exact", ["FullNode", {"out": "out", "shape": [1], "v": "v", "scalar_type": 4}],
         out={"out": ("int64", [2**60 + 1])}, values={"v": 2**60 + 1})
    case("FullNode infinity", ["FullNode", {"out": "out", "shape": [1], "v": "-inf", "scalar_type": 6}],
         out={"out": ("fp32", [-np.inf])})
    case("FullNode scalar", ["FullNode", {"out": "out", "shape": [], "v": 4.0, "scalar_type": 6}],
         out={"out": ("fp32", 4.0)})
    case("FullNode bool", ["FullNode", {"out": "out", "shape": [1], "v": "v", "scalar_type": 11}],
         out={"out": ("bool", [True])}, values={"v": True})
    for name, fields in [("step 0", {"start": 0, "stop": 9, "step": 0}),
                         ("too long", {"start": -(2**62), "stop": 2**62, "step": 1})]:
        case(f"ARangeNode {name}", ["ARangeNode", {"out": "out"} | fields], error="a range from")
    for value in [1e300, "nan"]:
        case(f"FullNode int32 {value}", ["FullNode", {"out": "out", "shape": [1], "v": value, "scalar_type": 3}],
             error="FullNode")
    case("FullNode shape", ["FullNode", {"out": "out", "shape": [-1], "v": 1.0, "scalar_type": 6}],
         error="shape [-1] is not possible")
    case("TriNode shape", ["TriNode", {"out": "out", "n": -1, "m": 2, "scalar_type": 6}], error="is not possible")
    refused("TrilNode rank", "TrilNode", {"x": normal(3)}, {}, "TrilNode")
    refused("TriuNode rank", "TriuNode", {"x": normal(3)}, {}, "TriuNode")


def threefry(key, count):
    """Threefry-2x32 of 20 rounds (Salmon et al., 2011) on the pairs (i, count + i), as JAX lays them out."""
    mask, rotations = 0xFFFFFFFF, [[13, 15, 26, 6], [17, 29, 16, 24]]
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    results = []
    for a, b in count:
        a, b = (a + keys[0]) & mask, (b + keys[1]) & mask
        for i in range(5):
            for rotation in rotations[i % 2]:
                a = (a + b) & mask
                b = ((b << rotation) | (b >> (32 - rotation))) & mask
                b ^= a
            a, b = (a + keys[(i + 1) % 3]) & mask, (b + keys[(i + 2) % 3] + i + 1) & mask
        results.append((a, b))
    return results


def random_bits():
    for width, dtype in [(4, "uint32"), (2, "uint16"), (1, "uint8")]:
        for seed in [0, 7, 2**40 + 3]:
            words = 8 * width // 4
            half = words // 2
            pairs = threefry((seed >> 32, seed & 0xFFFFFFFF), [(i, half + i) for i in range(half)])
            stream = np.array([a for a, _ in pairs] + [b for _, b in pairs], np.uint32)
            case(f"RandomBitsNode {dtype} seed {seed}", ["RandomBitsNode", {"out": "out", "shape": [2, "n"],
                 "seed": "seed", "width": width}], out={"out": (dtype, stream.view(dtype).reshape(2, 4))},
                 values={"seed": seed, "n": 4})
    # With no seed two draws differ: the number of words that are equal, as a sum of flags.
    case("RandomBitsNode unseeded", [["RandomBitsNode", {"out": "a", "shape": [64]}],
         ["RandomBitsNode", {"out": "b", "shape": [64]}], ["EqualNode", {"a": "a", "b": "b", "out": "same"}],
         ["AllNode", {"x": "same", "out": "out"}]], out={"out": ("bool", False)})
    case("RandomBitsNode width", ["RandomBitsNode", {"out": "out", "shape": [2], "width": 8}],
         error="must be 1, 2 or 4")
