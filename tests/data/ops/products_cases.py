"""Matrix products, quantized ones, convolutions."""

import numpy as np
import torch
import torch.nn.functional as F

from writer import FLOATS, SCALAR_TYPES, given, normal, op, plain, refused, rng


def products():
    for dtype in FLOATS:
        a, b, bias = normal(2, 3, dtype=dtype), normal(3, 4, dtype=dtype), normal(4, dtype=dtype)
        product = plain(a) @ plain(b)
        tol = {"bf16": [2**-7, 2**-6], "fp16": [2**-10, 2**-9], "fp32": None}[dtype]
        op(f"AddmmNode {dtype}", "AddmmNode", {"mat1": a, "mat2": b}, {}, product, tol=tol)
        op(f"AddmmNode bias {dtype}", "AddmmNode", {"mat1": a, "mat2": b, "bias": bias}, {}, product + plain(bias),
           tol=tol)
        op(f"AddmmNode alpha beta {dtype}", "AddmmNode", {"mat1": a, "mat2": b, "bias": bias},
           {"alpha": 0.5, "beta": -2.0}, 0.5 * product - 2 * plain(bias), tol=tol)
        op(f"AddmmNode alpha {dtype}", "AddmmNode", {"mat1": a, "mat2": b}, {"alpha": 0.5}, 0.5 * product, tol=tol)
        x, experts = normal(3, 1, 4, dtype=dtype), normal(2, 4, 5, dtype=dtype)
        chosen, rows = given([1, 0, 1], "int32"), given([2, 0, 0], "int64")
        for name, more, expected in [
            ("", {"rhs_indices": chosen}, [plain(x)[i] @ plain(experts)[e] for i, e in enumerate([1, 0, 1])]),
            ("both", {"lhs_indices": rows, "rhs_indices": chosen},
             [plain(x)[i] @ plain(experts)[e] for i, e in zip([2, 0, 0], [1, 0, 1])]),
        ]:
            op(f"GatherMmNode {name} {dtype}", "GatherMmNode", {"a": x, "b": experts} | more, {}, expected, tol=tol)
        sorted_choice = given([0, 0, 1], "int32")
        expected = [plain(x)[i] @ plain(experts)[e] for i, e in enumerate([0, 0, 1])]
        op(f"GatherMmNode sorted {dtype}", "GatherMmNode", {"a": x, "b": experts, "rhs_indices": sorted_choice},
           {"sorted_indices": True}, expected, tol=tol)
        for flag in [0, 1]:
            op(f"GatherMmNode flag {flag} {dtype}", "GatherMmNode", {"a": x, "b": experts,
               "rhs_indices": sorted_choice}, {"sorted_indices_flag": "f"}, expected, values={"f": flag},
               tol=tol)
        pair = normal(2, 1, 4, dtype=dtype)
        op(f"GatherMmNode no indices {dtype}", "GatherMmNode", {"a": pair, "b": experts}, {},
           plain(pair) @ plain(experts), tol=tol)
    refused("AddmmNode shapes", "AddmmNode", {"mat1": normal(2, 3), "mat2": normal(4, 2)}, {}, "AddmmNode")
    inputs = {"a": normal(1, 1, 4), "b": normal(2, 4, 5), "rhs_indices": given([2], "int32")}
    refused("GatherMmNode index", "GatherMmNode", inputs, {}, "index 2 into an axis of 2")
    refused("GatherMmNode vectors", "GatherMmNode", {"a": normal(4), "b": normal(4)}, {}, "matrices are needed")


def pack(codes, bits):
    """Codes of `bits` bits, the first in the lowest bits, as rows of 32-bit words."""
    stream = ((codes[..., None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3(code):
    sign, exponent, fraction = code >> 7, (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(sign == 1, -value, value)


def quantized(rows, columns, mode, bits, group, leading=()):
    """A weight's parts as a program holds them, and its values: (inputs, values)."""
    shape = (*leading, rows, columns)
    codes = rng.integers(0, 1 << bits, shape)
    groups = (*leading, rows, columns // group)
    if mode == "affine":
        scales = given(np.round(rng.uniform(0.01, 0.1, groups), 3), "fp32")
        biases = given(np.round(rng.normal(size=groups), 2), "fp32")
        values = codes * np.repeat(plain(scales), group, -1) + np.repeat(plain(biases), group, -1)
        return {"w": given(pack(codes, bits), "uint32"), "scales": scales, "biases": biases}, values
    if bits == 8:
        codes = np.where((codes & 0x7F) == 0x7F, 0, codes)  # no NaN
        elements = e4m3(codes)
    else:
        elements = np.where(codes >> 3, -1, 1) * E2M1[codes & 7]
    exponents = rng.integers(120, 128, groups)
    scale_codes = rng.integers(40, 72, groups) if mode == "nvfp4" else exponents
    scales = e4m3(scale_codes) if mode == "nvfp4" else 2.0 ** (exponents - 127)
    values = elements * np.repeat(scales, group, -1)
    return {"w": given(pack(codes, bits), "uint32"), "scales": given(scale_codes, "uint8")}, values

QUANTIZATIONS = [("affine", bits, group) for bits in [2, 3, 4, 5, 6, 8] for group in [32, 64, 128]] + [
    ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def quantized_products():
    tolerance = [1e-5, 1e-5]
    for mode, bits, group in QUANTIZATIONS:
        size = max(group, 32)
        name = f"{mode} {bits} bits group {group}"
        fields = {"group_size": group, "bits": bits, "mode": mode}
        parts, values = quantized(2, size, mode, bits, group)
        op(f"DequantizeNode {name}", "DequantizeNode", parts, fields, values,
           "fp32" if mode == "affine" else "bf16", tol=tolerance if mode == "affine" else [2**-8, 0])
        if group > 64:
            continue
        x = normal(3, size)
        op(f"QuantizedMatmulNode {name}", "QuantizedMatmulNode", {"x": x} | parts, fields, plain(x) @ values.T,
           tol=[1e-5, 1e-4])
        x = normal(3, 2)
        flat = fields | {"transpose": False}
        op(f"QuantizedMatmulNode not transposed {name}", "QuantizedMatmulNode", {"x": x} | parts, flat,
           plain(x) @ values, tol=[1e-5, 1e-4])
        parts, values = quantized(2, size, mode, bits, group, (2,))
        x, chosen = normal(3, 1, size), given([0, 1, 1], "int32")
        op(f"GatherQmmNode {name}", "GatherQmmNode", {"x": x} | parts | {"rhs_indices": chosen}, fields,
           [plain(x)[i] @ values[e].T for i, e in enumerate([0, 1, 1])], tol=[1e-5, 1e-4])
    fields = {"group_size": 32, "bits": 4, "mode": "affine"}
    parts, values = quantized(2, 32, "affine", 4, 32, (2,))
    x, rows, chosen = normal(3, 1, 32), given([2, 0], "int64"), given([0, 1], "int32")
    expected = [plain(x)[2] @ values[0].T, plain(x)[0] @ values[1].T]
    op("GatherQmmNode both", "GatherQmmNode", {"x": x} | parts | {"lhs_indices": rows, "rhs_indices": chosen},
       fields | {"sorted_indices": True}, expected, tol=[1e-5, 1e-4])
    for flag in [0, 1]:
        op(f"GatherQmmNode flag {flag}", "GatherQmmNode", {"x": x} | parts | {"lhs_indices": rows,
           "rhs_indices": chosen}, fields | {"sorted_indices_flag": "f"}, expected, values={"f": flag},
           tol=[1e-5, 1e-4])
    x = normal(2, 1, 2)
    op("GatherQmmNode not transposed", "GatherQmmNode", {"x": x} | parts | {"rhs_indices": chosen},
       fields | {"transpose": False}, [plain(x)[i] @ values[i] for i in range(2)], tol=[1e-5, 1e-4])
    parts, values = quantized(2, 32, "affine", 4, 32)
    for dtype in FLOATS:
        op(f"DequantizeNode to {dtype}", "DequantizeNode", parts, fields | {"dtype": SCALAR_TYPES[dtype]}, values,
           dtype)
    parts, values = quantized(2, 32, "nvfp4", 4, 16)
    for dtype in FLOATS:
        op(f"DequantizeNode nvfp4 to {dtype}", "DequantizeNode", parts, {"group_size": 16, "bits": 4, "mode": "nvfp4",
           "dtype": SCALAR_TYPES[dtype]}, values, dtype)
    # MLX's global scale is the matrix's largest magnitude, which 6 and 448, the largest element and scale, stand for.
    op("DequantizeNode global scale", "DequantizeNode", parts | {"global_scale": given(5.5)}, {"group_size": 16,
       "bits": 4, "mode": "nvfp4"}, values * 5.5 / (6 * 448), "fp32")
    parts, values = quantized(2, 32, "affine", 4, 32)
    x = normal(3, 32)
    for wrong in [{"mode": "gguf"}, {"bits": 7}, {"bits": 0}, {"group_size": 48}, {"group_size": -32},
                  {"mode": "mxfp4", "bits": 8}, {"mode": "nvfp4", "bits": 4}]:
        inputs = {"x": x} | parts
        refused(f"QuantizedMatmulNode {wrong}", "QuantizedMatmulNode", inputs, fields | wrong, "quantiz")
        refused(f"DequantizeNode {wrong}", "DequantizeNode", parts, fields | wrong, "quantiz")
        more = {"x": normal(1, 1, 32), "rhs_indices": given([0], "int32")} | {k: given(plain(v)[None], v.dtype_name)
                for k, v in parts.items()}
        refused(f"GatherQmmNode {wrong}", "GatherQmmNode", more, fields | wrong, "quantiz")
    refused("QuantizedMatmulNode no biases", "QuantizedMatmulNode", {"x": x} | {k: parts[k] for k in ["w", "scales"]},
            fields, "biases")
    refused("QuantizedMatmulNode scales", "QuantizedMatmulNode", {"x": x, "w": parts["w"],
            "scales": given(plain(parts["scales"])[:1]), "biases": given(plain(parts["biases"])[:1])}, fields,
            "with scales of shape [1, 1]")


def convolutions():
    functions = {1: (F.conv1d, F.conv_transpose1d), 2: (F.conv2d, F.conv_transpose2d),
                 3: (F.conv3d, F.conv_transpose3d)}
    suffixes = {1: [""], 2: ["_h", "_w"], 3: ["_d", "_h", "_w"]}
    sizes = {1: [7], 2: [5, 6], 3: [4, 5, 3]}

    def spread(name, values):
        return {name + suffix: int(value) for suffix, value in zip(suffixes[len(values)], values)}

    for n in [1, 2, 3]:
        settings = [
            ("", {}, 1),
            ("stride padding", {"stride": [2, 1, 2][:n], "padding": [1, 2, 0][:n]}, 1),
            ("dilation", {"dilation": [2, 2, 1][:n], "padding": [1, 1, 1][:n]}, 1),
            ("groups", {"padding": [1, 1, 1][:n]}, 2),
        ]
        for name, window, groups in settings:
            for transposed in [False, True]:
                for dtype in FLOATS if name == "" else ["fp32"]:
                    x = given(rng.integers(-3, 4, (2, *sizes[n], 4)), dtype)
                    kernel = [3, 2, 2][:n]
                    w = given(rng.integers(-3, 4, (6, *kernel, 4 // groups)), dtype)
                    first = torch.from_numpy(np.moveaxis(plain(x), -1, 1).astype(np.float64))
                    weight = torch.from_numpy(np.moveaxis(plain(w), -1, 1).astype(np.float64))
                    more = dict(window)
                    if transposed:
                        # torch has [in, out / groups, ..]: groups of outputs are split, and in and out swapped.
                        weight = torch.cat([part.transpose(0, 1) for part in weight.chunk(groups)])
                        if "stride" in window:
                            more["output_padding"] = [1, 0, 1][:n]
                    result = functions[n][transposed](first, weight, groups=groups, **more)
                    fields = {"groups": groups}
                    for key, values in more.items():
                        fields |= spread(key, values)
                    node = f"Conv{'Transpose' if transposed else ''}{n}DNode"
                    op(f"{node} {name} {dtype}", node, {"x": x, "w": w}, fields, np.moveaxis(result.numpy(), 1, -1),
                       dtype)
        for transposed in [False, True]:
            node = f"Conv{'Transpose' if transposed else ''}{n}DNode"
            inputs = {"x": normal(1, *sizes[n], 2), "w": normal(2, *[2] * n, 2)}
            most = 2**31 - 1
            for field, value in [("stride", 0), ("stride", -1), ("padding", -1), ("dilation", 0), ("dilation", most),
                                 ("padding", most), ("stride", most) if transposed else ("groups", 3), ("groups", 0),
                                 ("groups", most)]:
                fields = {field: value} if field == "groups" else spread(field, [value] * n)
                refused(f"{node} {field} {value}", node, inputs, fields, node)
            if transposed:
                refused(f"{node} output padding", node, inputs, spread("output_padding", [-1] * n), "output_padding")
            refused(f"{node} rank", node, {"x": normal(3, 2), "w": normal(2, *[2] * n, 2)} if n > 1 else
                    {"x": normal(3), "w": normal(2, 2, 2)}, {}, node)
            if not transposed:
                refused(f"{node} larger kernel", node, {"x": normal(1, *[1] * n, 2), "w": normal(2, *[2] * n, 2)}, {},
                        node)
