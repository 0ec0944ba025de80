"""Ops that read and write by index."""

import numpy as np

from writer import FLOATS, case, given, normal, op, plain, refused, rng


def indexing():
    for dtype in FLOATS + ["int32", "int64", "bool"]:
        x = given(rng.integers(0 if dtype == "bool" else -9, 2, (4, 3)), dtype)
        for index in ["int32", "int64", "uint32"]:
            rows = given([[3, 0], [1, 1]], index)
            op(f"TakeNode {dtype} by {index}", "TakeNode", {"x": x, "index": rows}, {"axis": -2}, plain(x)[plain(rows)])
        columns = given([[2, 0], [1, 1], [0, 0], [2, 2]], "int64")
        op(f"TakeAlongAxisNode {dtype}", "TakeAlongAxisNode", {"x": x, "indices": columns}, {"axis": -1},
           np.take_along_axis(plain(x), plain(columns), 1))
        row, column = given([3, -4, 1], "int32"), given([0, 2, -1], "int32")
        case(f"GatherNode {dtype}", ["GatherNode", {"x": "x", "indices": ["r", "c"], "out": "out", "axes": [0, -1],
             "slice_sizes": [1, 1]}], {"x": x, "r": row, "c": column},
             {"out": (dtype, plain(x)[plain(row), plain(column)].reshape(3, 1, 1))})
        update = given(rng.integers(0, 2, (2, 3)), dtype)
        expected = np.array(plain(x))
        expected[[3, -3]] = plain(update)
        op(f"IndexCopyNode {dtype}", "IndexCopyNode", {"dst": x, "update": update, "indices": given([3, -3], "int64")},
           {"axis": 0}, expected, dtype)
        expected = np.array(plain(x))
        expected[1:3] = plain(update)
        op(f"IndexCopyNode run {dtype}", "IndexCopyNode", {"dst": x, "update": update,
           "indices": given([1, 2], "int32")}, {"axis": -2}, expected, dtype)
        op(f"SliceUpdateNode {dtype}", "SliceUpdateNode", {"dst": x, "update": update}, {"axis": "a", "start": "s",
           "stop": "e"}, expected, dtype, values={"a": 0, "s": 1, "e": 3})
    x = normal(4, 3)
    for index, values in [(2, None), (-1, None), ("i", {"i": 3}), ("i", {"i": -4})]:
        place = values["i"] if values else index
        op(f"TakeNode {place}{' of a slot' if values else ''}", "TakeNode", {"x": x}, {"index": index, "axis": 0},
           plain(x)[place], values=values)
    case("GatherNode slices", ["GatherNode", {"x": "x", "indices": ["i"], "out": "out", "axes": [0],
         "slice_sizes": [2, 3]}], {"x": x, "i": given([0, 2], "int64")},
         {"out": ("fp32", np.stack([plain(x)[0:2], plain(x)[2:4]]))})
    update = normal(2, 3)
    expected = np.array(plain(x))
    expected[0:4:2] = plain(update)
    op("SliceUpdateNode step", "SliceUpdateNode", {"dst": x, "update": update}, {"axis": -2, "start": 0, "stop": 99,
       "step": 2}, expected)
    expected = np.array(plain(x))
    expected[1:2] = plain(update)[:1]
    op("SliceUpdateNode huge step", "SliceUpdateNode", {"dst": x, "update": given(plain(update)[:1])}, {"axis": 0,
       "start": 1, "stop": 4, "step": 2**31 - 1}, expected)
    op("SliceUpdateNode empty", "SliceUpdateNode", {"dst": x, "update": given(np.zeros((0, 3)))}, {"axis": 0,
       "start": 3, "stop": 1}, plain(x))
    for dtype in FLOATS + ["int32"]:
        target, updates = given(np.zeros((3, 4)), dtype), given(rng.integers(1, 5, (2, 4)), dtype)
        rows = given([[0, 2, 1, 2], [0, 2, -1, 0]], "int64")
        expected = np.zeros((3, 4))
        for i in range(2):
            for j in range(4):
                expected[plain(rows)[i, j], j] += plain(updates)[i, j]
        op(f"ScatterAddNode {dtype}", "ScatterAddNode", {"x": target, "indices": rows, "updates": updates}, {"axis": 0},
           expected)
        small = given(plain(rows)[:1, :2], "int64")
        expected = np.zeros((3, 4))
        for j in range(2):
            expected[plain(small)[0, j], j] += plain(updates)[0, j]
        op(f"ScatterAddNode smaller indices {dtype}", "ScatterAddNode", {"x": target, "indices": small,
           "updates": updates}, {"axis": -2}, expected)
    for wrong in [4, -5, 2**40]:
        index = given([wrong], "int64")
        refused(f"TakeNode index {wrong}", "TakeNode", {"x": x, "index": index}, {"axis": 0},
                f"index {wrong} into an axis of 4")
        refused(f"TakeNode literal {wrong}", "TakeNode", {"x": x}, {"index": wrong, "axis": 0},
                f"index {wrong} into an axis of 4")
        refused(f"IndexCopyNode index {wrong}", "IndexCopyNode", {"dst": x, "update": given(plain(x)[:1]),
                "indices": index}, {"axis": 0}, f"index {wrong} into an axis of 4")
        columns = given([[wrong]], "int64")
        refused(f"TakeAlongAxisNode index {wrong}", "TakeAlongAxisNode", {"x": x, "indices": columns}, {"axis": 0},
                f"index {wrong} into an axis of 4")
        refused(f"ScatterAddNode index {wrong}", "ScatterAddNode", {"x": x, "indices": columns,
                "updates": normal(1, 1)}, {"axis": 0}, f"index {wrong} into an axis of 4")
        case(f"GatherNode index {wrong}", ["GatherNode", {"x": "x", "indices": ["i"], "out": "out", "axes": [0],
             "slice_sizes": [1, 3]}], {"x": x, "i": index}, error=f"index {wrong} into an axis of 4")
    refused("TakeNode float index", "TakeNode", {"x": x, "index": normal(1)}, {"axis": 0}, "must be integers")
    case("GatherNode sizes", ["GatherNode", {"x": "x", "indices": ["i"], "out": "out", "axes": [0],
         "slice_sizes": [5, 3]}], {"x": x, "i": given([0], "int32")}, error="GatherNode")
    case("GatherNode too few sizes", ["GatherNode", {"x": "x", "indices": ["i"], "out": "out", "axes": [1],
         "slice_sizes": [1]}], {"x": x, "i": given([0], "int32")}, error="slice sizes for 1 axes")
    refused("SliceUpdateNode rows", "SliceUpdateNode", {"dst": x, "update": update}, {"axis": 0, "start": 0, "stop": 3},
            "for rows 0 to 3 on axis 0")
    refused("SliceUpdateNode step 0", "SliceUpdateNode", {"dst": x, "update": update}, {"axis": 0, "start": 0,
            "stop": 3, "step": 0}, "step 0, must be positive")
    refused("IndexCopyNode shape", "IndexCopyNode", {"dst": x, "update": update, "indices": given([0], "int64")},
            {"axis": 0}, "an update of shape [2, 3] at indices of shape [1]")
    refused("ScatterAddNode shape", "ScatterAddNode", {"x": x, "indices": given([[0, 0]], "int64"),
            "updates": normal(1, 1)}, {"axis": 0}, "indices of shape [1, 2] and updates of shape [1, 1]")
