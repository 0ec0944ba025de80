#!/usr/bin/env python3
"""Writes cases.json: small programs for every op of the payload's schema, with inputs and expected outputs.

The expected numbers come from numpy in double precision, from torch where numpy has no such function, or are spelled
out here (bit formats of quantized weights, the random generator), never from MLX. tests/ops/ops_test.cc runs the cases.

A case is one line of the file:
  name    of the case
  ops     its main chain, [op, {field: value}]; a field that is a slot holds the slot's name
  chains  further chains, which the first may call by number, from 1 on
  in      tensors by name, [type, shape, elements]
  values  value slots that are set before the first op, by name
  out     expected tensors by name; expected value slots are plain numbers
  error   instead of out: a part of the message that the program, or running it, must be refused with
  tol     relative and absolute tolerance, where that of the type does not fit
"""

import json
import pathlib

import along_axes_cases
import control_cases
import creation_cases
import elementwise_cases
import indexing_cases
import products_cases
import shapes_cases
import writer


def main():
    for family in [elementwise_cases.unary, elementwise_cases.binary, along_axes_cases.reductions,
                   along_axes_cases.norms, along_axes_cases.rope, along_axes_cases.attention, shapes_cases.shapes,
                   shapes_cases.axes, creation_cases.creation, creation_cases.random_bits, indexing_cases.indexing,
                   products_cases.products, products_cases.quantized_products, products_cases.convolutions,
                   control_cases.values_and_control]:
        family()
    path = pathlib.Path(__file__).parent / "cases.json"
    path.write_text("[\n" + ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in writer.cases) + "\n]\n")


if __name__ == "__main__":
    main()
