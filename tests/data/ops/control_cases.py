"""Value slots and chains."""

from writer import case, given, normal, plain


def values_and_control():
    for node, function in [("AddIntNode", lambda a, b: a + b), ("SubtractIntNode", lambda a, b: a - b),
                           ("MultiplyIntNode", lambda a, b: a * b), ("FloorDivideIntNode", lambda a, b: a // b),
                           ("ModIntNode", lambda a, b: a % b)]:
        for a, b in [(7, 2), (-7, 2), (7, -2), (-7, -2), (2**40, 3)]:
            case(f"{node} {a} {b}", [node, {"a": "a", "b": b, "out": "out"}], out={"out": function(a, b)},
                 values={"a": a})
        low = -(2**63)
        if node != "ModIntNode":
            a, b = {"FloorDivideIntNode": (low, -1), "SubtractIntNode": (low, 1)}.get(node, (2**62, 2**62))
            case(f"{node} overflow", [node, {"a": a, "b": "b", "out": "out"}], values={"b": b},
                 error="no result in 64 bits")
    case("ModIntNode lowest", ["ModIntNode", {"a": -(2**63), "b": -1, "out": "out"}], out={"out": 0})
    for node in ["FloorDivideIntNode", "ModIntNode"]:
        case(f"{node} by 0", [node, {"a": 1, "b": 0, "out": "out"}], error="no result in 64 bits")
    x = normal(2, 5)
    for dim in [0, -1]:
        case(f"SymSizeNode {dim}", ["SymSizeNode", {"a": "x", "dim": dim, "out": "n"}], {"x": x}, {"n": x.shape[dim]})
    for dtype in ["int32", "int64", "uint8", "bool", "fp32", "bf16"]:
        item = given([[1]], dtype)
        case(f"ItemIntNode {dtype}", ["ItemIntNode", {"x": "x", "out": "n"}], {"x": item}, {"n": 1})
    large = 2**60 + 1  # no double has it
    case("ItemIntNode large", ["ItemIntNode", {"x": "x", "out": "n"}], {"x": given([large], "int64")}, {"n": large})
    case("ItemIntNode many", ["ItemIntNode", {"x": "x", "out": "n"}], {"x": x}, error="one element is needed")
    add = lambda out: [["AddNode", {"a": "x", "b": "x", "out": out}]]  # noqa: E731
    negate = lambda out: [["NegNode", {"x": "x", "out": out}]]  # noqa: E731
    for cond, taken in [(1, 0), (0, 1), (-5, 0), (True, 0), (False, 1), (2.0, 0)]:
        fields = {"cond": "c", "then_chain_idx": 1, "else_chain_idx": 2}
        case(f"IfNode {cond}", ["IfNode", fields], {"x": x}, {"out": ("fp32", [2 * plain(x), -plain(x)][taken])},
             {"c": cond}, [add("out"), negate("out")])
    case("IfNode literal", ["IfNode", {"cond": 1, "then_chain_idx": 1, "else_chain_idx": 2}], {"x": x},
         {"out": ("fp32", 2 * plain(x))}, chains=[add("out"), negate("out")])
    case("IfNode nested", ["IfNode", {"cond": "c", "then_chain_idx": 1, "else_chain_idx": 2}], {"x": x},
         {"out": ("fp32", -plain(x))}, {"c": 1},
         [[["IfNode", {"cond": 0, "then_chain_idx": 3, "else_chain_idx": 2}]], negate("out"), add("out")])
    case("NoopNode", [["NoopNode", {}], ["IdCopyNode", {"x": "x", "out": "out"}]], {"x": x},
         {"out": ("fp32", plain(x))})
    # carry += x[t]; y[t] = carry
    x, start = normal(2, 3, 4), normal(2, 4)
    body = [["AddNode", {"a": "c", "b": "s", "out": "c"}], ["IdCopyNode", {"x": "c", "out": "y"}]]
    for axis in [1, -2]:
        case(f"ScanNode {axis}", [["IdCopyNode", {"x": "start", "out": "c"}], ["ScanNode", {"originals": ["x"],
             "sliced": ["s"], "outputs": ["y"], "carry": ["c"], "body_chain_idx": 1, "scan_axis": axis}]],
             {"x": x, "start": start}, {"y": ("fp32", plain(x).cumsum(1) + plain(start)[:, None]),
             "c": ("fp32", plain(x).sum(1) + plain(start))}, chains=[body])
    z = normal(2, 3, 1)
    case("ScanNode two tensors", ["ScanNode", {"originals": ["x", "z"], "sliced": ["s", "t"], "outputs": ["y", "w"],
         "carry": [], "body_chain_idx": 1}], {"x": x, "z": z}, {"y": ("fp32", plain(x) * plain(z)),
         "w": ("fp32", -plain(z))}, chains=[[["MultiplyNode", {"a": "s", "b": "t", "out": "y"}],
         ["NegNode", {"x": "t", "out": "w"}]]])
    case("ScanNode lengths", ["ScanNode", {"originals": ["x", "z"], "sliced": ["s", "t"], "outputs": ["y"], "carry": [],
         "body_chain_idx": 1}], {"x": x, "z": normal(2, 2, 1)}, error="scanned over 3 positions",
         chains=[[["MultiplyNode", {"a": "s", "b": "t", "out": "y"}]]])
