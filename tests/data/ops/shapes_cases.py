"""Ops that move elements, and every op that names an axis."""

import numpy as np

from writer import FLOATS, case, given, integers, normal, op, plain, refused, rng


def shapes():
    for dtype in FLOATS + ["int32", "int64", "bool"]:
        x = given(rng.integers(0, 2, (2, 3, 4)) if dtype == "bool" else rng.integers(-9, 9, (2, 3, 4)), dtype)
        a = plain(x)
        op(f"TransposeNode {dtype}", "TransposeNode", {"x": x}, {"perm": [2, -3, 1]}, a.transpose(2, 0, 1))
        op(f"FlipNode {dtype}", "FlipNode", {"x": x}, {"axes": [0, -1]}, np.flip(a, (0, 2)))
        op(f"ReshapeNode {dtype}", "ReshapeNode", {"x": x}, {"shape": [3, -1]}, a.reshape(3, 8))
        op(f"TileNode {dtype}", "TileNode", {"x": x}, {"reps": [2, 1, 1, 2]}, np.tile(a, (2, 1, 1, 2)))
        op(f"RepeatNode {dtype}", "RepeatNode", {"x": x}, {"repeats": 2, "axis": -2}, np.repeat(a, 2, 1))
        op(f"RollNode {dtype}", "RollNode", {"x": x}, {"shift": [1, -6], "axes": [0, -1]}, np.roll(a, (1, -6), (0, 2)))
        op(f"SliceNode {dtype}", "SliceNode", {"x": x}, {"axis": -1, "start": 1, "stop": -1}, a[..., 1:-1])
        op(f"BroadcastToNode {dtype}", "BroadcastToNode", {"x": given(a[:, :1], dtype)}, {"shape": [2, -1, 3, -1]},
           np.broadcast_to(a[:, :1], (2, 2, 3, 4)))
        case(f"SplitNode {dtype}", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": [1, 3], "axis": -1}], {"x": x},
             {"l": (dtype, a[..., :1]), "r": (dtype, a[..., 1:])})
        for node, function in [("ConcatenateNode", np.concatenate), ("StackNode", np.stack)]:
            case(f"{node} {dtype}", [node, {"tensors": ["x", "y", "x"], "out": "out", "axis": -1}], {"x": x, "y": x},
                 {"out": (dtype, function([a, a, a], axis=-1))})
        strides = {"shape": [2, 3], "strides": [1, 4], "offset": 5}
        expected = [[a.flatten()[5 + i + 4 * j] for j in range(3)] for i in range(2)]
        op(f"AsStridedNode {dtype}", "AsStridedNode", {"x": x}, strides, expected)
        margin = 0.0 if dtype == "bool" else 7.0
        pad = {"pad_width": [1, 0, 0, 2, 0, 0], "mode": "constant", "constant_value": margin}
        op(f"PadNode {dtype}", "PadNode", {"x": x}, pad, np.pad(a, ((1, 0), (0, 2), (0, 0)), constant_values=margin))
        op(f"ExpandDimsNode {dtype}", "ExpandDimsNode", {"x": x}, {"axis": -2}, a[:, :, None])
        op(f"SqueezeNode {dtype}", "SqueezeNode", {"x": given(a[:1, :, :1], dtype)}, {"dims": [-1, 0]}, a[0, :, 0])
    x = normal(2, 3, 4)
    a = plain(x)
    # Sizes that come out of value slots; a float or a flag counts where it is a whole number.
    dynamic = {"one": 1, "two": 2.0, "yes": True, "three": 3, "six": 6, "back": -1}
    op("TileNode dynamic", "TileNode", {"x": x}, {"reps": ["two", "yes", 1]}, np.tile(a, (2, 1, 1)), values=dynamic)
    op("RepeatNode dynamic", "RepeatNode", {"x": x}, {"repeats": "two", "axis": 0}, np.repeat(a, 2, 0), values=dynamic)
    op("ReshapeNode dynamic", "ReshapeNode", {"x": x}, {"shape": ["six", "back"]}, a.reshape(6, 4), values=dynamic)
    op("BroadcastToNode dynamic", "BroadcastToNode", {"x": x}, {"shape": ["three", "back", 3, 4]},
       np.broadcast_to(a, (3, 2, 3, 4)), values=dynamic)
    op("RollNode dynamic", "RollNode", {"x": x}, {"shift": ["six"], "axes": [1]}, np.roll(a, 6, 1), values=dynamic)
    op("SliceNode dynamic", "SliceNode", {"x": x}, {"axis": "one", "start": "yes", "stop": "three"}, a[:, 1:3],
       values=dynamic)
    op("AsStridedNode dynamic", "AsStridedNode", {"x": x}, {"shape": ["two"], "strides": ["six"]}, a.flatten()[[0, 6]],
       values=dynamic)
    op("PadNode dynamic", "PadNode", {"x": x}, {"pad_width": ["one", 0, 0, 0, 0, "two"], "mode": "constant"},
       np.pad(a, ((1, 0), (0, 0), (0, 2))), values=dynamic)
    case("SplitNode dynamic", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": ["one", "two"], "axis": 1}],
         {"x": x}, {"l": ("fp32", a[:, :1]), "r": ("fp32", a[:, 1:])}, dynamic)
    refused("TileNode fraction", "TileNode", {"x": x}, {"reps": ["n"]}, "where an integer is needed", values={"n": 0.5})
    # Ends of ranges.
    for start, stop, step in [(0, 99, 2), (-99, 2, 1), (2, 1, 1), (-1, -99, -1), (99, 0, -2), (1, 3, -1), (3, None, -1),
                              (0, 4, 2**31 - 1), (3, -99, -(2**31))]:
        expected = a[..., slice(start, -99 if stop is None else stop, step)]
        op(f"SliceNode {start} {stop} {step}", "SliceNode", {"x": x},
           {"axis": 2, "start": start, "stop": -99 if stop is None else stop, "step": step}, expected)
    y = normal(1, 2, 1)
    op("SqueezeNode all", "SqueezeNode", {"x": y}, {}, plain(y).reshape(2))
    op("SqueezeNode wider than 1", "SqueezeNode", {"x": y}, {"dims": [0, 1]}, plain(y).reshape(2, 1))
    op("FlipNode no axes", "FlipNode", {"x": y}, {"axes": []}, plain(y))
    op("PadNode edge", "PadNode", {"x": x}, {"pad_width": [0, 0, 1, 2, 0, 1], "mode": "edge"},
       np.pad(a, ((0, 0), (1, 2), (0, 1)), mode="edge"))
    op("PadNode negative", "PadNode", {"x": x}, {"pad_width": [0, 0, -1, 1, 2, -3], "mode": "constant"},
       np.pad(a[:, 1:, :1], ((0, 0), (0, 1), (2, 0))))
    y = normal(2)
    op("PadNode infinity", "PadNode", {"x": y}, {"pad_width": [1, 0], "mode": "constant", "constant_value": "-inf"},
       [-np.inf, *plain(y)])
    case("SplitNode one size", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": [3], "axis": 2}], {"x": x},
         {"l": ("fp32", a[..., :3]), "r": ("fp32", a[..., 3:])})
    op("RollNode no axes", "RollNode", {"x": y}, {"shift": [], "axes": []}, plain(y))
    for node, fields in [("TransposeNode", {"perm": [0, 1]}), ("TransposeNode", {"perm": [0, 1, 1]}),
                         ("ReshapeNode", {"shape": [5, -1]}), ("ReshapeNode", {"shape": [-1, -1]}),
                         ("ReshapeNode", {"shape": [2**31, 2**33]}), ("ReshapeNode", {"shape": [7]}),
                         ("TileNode", {"reps": [-1]}), ("TileNode", {"reps": [2**30, 2**30, 2**30]}),
                         ("RepeatNode", {"repeats": -1, "axis": 0}), ("RepeatNode", {"repeats": 2**31 - 1, "axis": 0}),
                         ("SliceNode", {"axis": 0, "start": 0, "stop": 1, "step": 0}),
                         ("BroadcastToNode", {"shape": [4]}), ("BroadcastToNode", {"shape": [2, 3, 5]}),
                         ("BroadcastToNode", {"shape": [-1, 2, 3, 4]}),
                         ("AsStridedNode", {"shape": [2], "strides": [24]}),
                         ("AsStridedNode", {"shape": [2], "strides": [-1]}),
                         ("AsStridedNode", {"shape": [1], "strides": [0], "offset": 2**62}),
                         ("PadNode", {"pad_width": [1, 1], "mode": "constant"}),
                         ("PadNode", {"pad_width": [0, 0, 0, 0, -5, 0], "mode": "constant"}),
                         ("PadNode", {"pad_width": [2**31 - 1] * 6, "mode": "constant"}),
                         ("PadNode", {"pad_width": [0] * 6, "mode": "reflect"}),
                         ("RollNode", {"shift": [1, 2], "axes": [0]}),
                         ("FlipNode", {"axes": [1, -2]})]:
        refused(f"{node} {fields}", node, {"x": x}, fields, node)
    case("SplitNode sizes", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": [1, 1], "axis": 2}], {"x": x},
         error="sizes leave a part of axis 2")
    case("SplitNode beyond", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": [1, 9], "axis": 2}], {"x": x},
         error="sizes do not fit axis 2")
    case("ConcatenateNode shapes", ["ConcatenateNode", {"tensors": ["x", "y"], "out": "out", "axis": 0}],
         {"x": x, "y": y}, error="ConcatenateNode")
    case("StackNode shapes", ["StackNode", {"tensors": ["x", "y"], "out": "out", "axis": 0}], {"x": x, "y": y},
         error="StackNode")


def axes():
    """Every op with an axis: one that the tensor does not have is an error that names it, from both ends."""
    x, rows = normal(2, 3), integers(0, 2, 2, 3, dtype="int32")
    single = ["ArgmaxNode", "ArgminNode", "CumsumNode", "SoftmaxNode", "SortNode", "ArgsortNode"]
    lists = ["AllNode", "AnyNode", "SumNode", "MeanNode", "ProdNode", "MaxNode", "MinNode", "MedianNode", "VarNode",
             "StdNode", "LogSumExpNode"]
    for bad in [2, -3, 2**31 - 1, -(2**31)]:
        message = f"axis {bad} of a tensor of shape [2, 3]"
        for node in single:
            refused(f"{node} axis {bad}", node, {"x": x}, {"axis": bad}, message)
        for node in lists:
            refused(f"{node} axis {bad}", node, {"x": x}, {"axes": [0, bad]}, message)
        refused(f"SqueezeNode axis {bad}", "SqueezeNode", {"x": x}, {"dims": [bad]}, message)
        refused(f"FlipNode axis {bad}", "FlipNode", {"x": x}, {"axes": [bad]}, message)
        refused(f"TransposeNode axis {bad}", "TransposeNode", {"x": x}, {"perm": [0, bad]}, message)
        refused(f"RollNode axis {bad}", "RollNode", {"x": x}, {"shift": [1], "axes": [bad]}, message)
        refused(f"RepeatNode axis {bad}", "RepeatNode", {"x": x}, {"repeats": 2, "axis": bad}, message)
        refused(f"PartitionNode axis {bad}", "PartitionNode", {"x": x}, {"kth": 0, "axis": bad}, message)
        refused(f"ArgPartitionNode axis {bad}", "ArgPartitionNode", {"x": x}, {"kth": 0, "axis": bad}, message)
        refused(f"TakeNode axis {bad}", "TakeNode", {"x": x}, {"index": 0, "axis": bad}, message)
        refused(f"TakeAlongAxisNode axis {bad}", "TakeAlongAxisNode", {"x": x, "indices": rows}, {"axis": bad}, message)
        case(f"GatherNode axis {bad}", ["GatherNode", {"x": "x", "indices": ["i"], "out": "out", "axes": [bad],
             "slice_sizes": [1, 1]}], {"x": x, "i": rows}, error=message)
        refused(f"SliceNode axis {bad}", "SliceNode", {"x": x}, {"axis": bad, "start": 0, "stop": 1}, message)
        refused(f"SliceNode axis {bad} of a slot", "SliceNode", {"x": x}, {"axis": "n", "start": 0, "stop": 1}, message,
                values={"n": bad})
        refused(f"SliceUpdateNode axis {bad}", "SliceUpdateNode", {"dst": x, "update": x}, {"axis": bad, "start": 0,
                "stop": 1}, message)
        refused(f"IndexCopyNode axis {bad}", "IndexCopyNode", {"dst": x, "update": x, "indices": given([0], "int64")},
                {"axis": bad}, message)
        refused(f"ScatterAddNode axis {bad}", "ScatterAddNode", {"x": x, "indices": rows, "updates": x}, {"axis": bad},
                message)
        case(f"SymSizeNode axis {bad}", ["SymSizeNode", {"a": "x", "dim": bad, "out": "n"}], {"x": x}, error=message)
        case(f"SplitNode axis {bad}", ["SplitNode", {"x": "x", "outs": ["l", "r"], "sizes": [1, 1], "axis": bad}],
             {"x": x}, error=message)
        case(f"ConcatenateNode axis {bad}", ["ConcatenateNode", {"tensors": ["x", "x"], "out": "out", "axis": bad}],
             {"x": x}, error=message)
        scan = {"originals": ["x"], "sliced": ["s"], "outputs": ["out"], "carry": [], "body_chain_idx": 1}
        case(f"ScanNode axis {bad}", ["ScanNode", scan | {"scan_axis": bad}], {"x": x}, error=message,
             chains=[[["IdCopyNode", {"x": "s", "out": "out"}]]])
        if bad != 2 and bad != -3:  # the result has one axis more
            refused(f"ExpandDimsNode axis {bad}", "ExpandDimsNode", {"x": x}, {"axis": bad}, f"axis {bad}")
            case(f"StackNode axis {bad}", ["StackNode", {"tensors": ["x", "x"], "out": "out", "axis": bad}], {"x": x},
                 error=f"axis {bad}")
    for node in lists:
        refused(f"{node} axis twice", node, {"x": x}, {"axes": [1, -1]}, "axis -1 is named twice")
    scalar = given(1.5)
    refused("SoftmaxNode of a scalar", "SoftmaxNode", {"x": scalar}, {"axis": 0}, "axis 0 of a tensor of shape []")
