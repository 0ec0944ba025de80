#!/usr/bin/env python3
"""Plants violations in a small tree, one at a time, and expects check_includes.py to name each and nothing else."""

import tempfile
import unittest
from pathlib import Path

import check_includes

DESIGN = """# Design
| room | what lives there | may depend on |
| --- | --- | --- |
| `cache` | Integers. | the standard library |
| `kernels` | Kernels; a | in a cell is written differently. | Highway |
| `bytes` | Pools. | cache, kernels, MLX |
| `program` | Payloads. | bytes, FlatBuffers |
| `pte` | Containers. | FlatBuffers |
| `delegate` | The plugin. | program, ExecuTorch |
| `llm` | Text. | program, pte, cache |
| `apps` | The command line. | llm |
"""

# A tree with every kind of include that is right. Each room has x.h and x.cc.
GOOD = {
    "cache": ["<cstdint>", "<gtest/gtest.h>@x_test.cc", "<stdint.h>@x.h"],
    "kernels": [
        '"offgraph/cache/error.h"',
        "<hwy/highway.h>",
        "<hwy/highway.h>@y-inl.h",
        "<immintrin.h>",
        '"offgraph/kernels/y-inl.h"',
        "<benchmark/benchmark.h>@x_benchmark.cc",
        "<gtest/gtest.h>@x_test_util.cc",
    ],
    "bytes": ['"offgraph/cache/x.h"', '"offgraph/kernels/x.h"@x.h', "<mlx/array.h>@x.h", "<sys/mman.h>"],
    "program": [
        '"offgraph/bytes/x.h"@x.h',
        '"offgraph/cache/x.h"@x.h',
        '"offgraph/kernels/x.h"',
        "<mlx/ops.h>",
        "<schema_generated.h>",
        "<flatbuffers/flatbuffers.h>",
    ],
    "pte": ['"offgraph/cache/error.h"', '"offgraph/pte/schema/program_generated.h"', "<fcntl.h>"],
    "delegate": [
        '"offgraph/program/x.h"',
        '"offgraph/bytes/x.h"@x.h',
        '"offgraph/cache/x.h"@x.h',
        "<executorch/runtime/core/error.h>",
    ],
    "llm": ['"offgraph/program/x.h"', '"offgraph/pte/x.h"', '"offgraph/cache/x.h"', "<nlohmann/json.hpp>", "<pcre2.h>"],
    "apps": [f'"offgraph/{room}/x.h"' for room in check_includes.ROOMS] + ["<CLI/CLI.hpp>", "<histedit.h>"],
}


class CheckIncludesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.before = {}
        self.write("docs/DESIGN.md", DESIGN)
        self.write("offgraph/cache/error.h", "#pragma once\n")
        for room, includes in GOOD.items():
            self.write(f"offgraph/{room}/x.h", "// An hn::Vec and an __m512 in a comment are fine.\n#pragma once\n")
            self.write(f"offgraph/{room}/x.cc", f'#include "offgraph/{room}/x.h"\n')
            for include in includes:
                header, _, name = include.partition("@")
                self.append(f"offgraph/{room}/{name or 'x.cc'}", f"#include {header}  // y\n")
            sources = sorted(path.name for path in (self.root / "offgraph" / room).glob("*.cc"))
            self.write(f"offgraph/{room}/CMakeLists.txt", f"offgraph_room({room}\n  SOURCES {' '.join(sources)})\n")
        self.before.clear()

    def write(self, name, text):
        path = self.root / name
        self.before.setdefault(path, path.read_text(encoding="utf-8") if path.exists() else None)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def restore(self):
        """Takes back what was planted since setUp."""
        for path, text in self.before.items():
            if text is None:
                path.unlink()
            else:
                path.write_text(text, encoding="utf-8")
        self.before.clear()

    def append(self, name, text):
        path = self.root / name
        self.write(name, (path.read_text(encoding="utf-8") if path.exists() else "") + text)

    def replace(self, name, old, new):
        text = (self.root / name).read_text(encoding="utf-8")
        self.assertIn(old, text)
        self.write(name, text.replace(old, new))

    def expect(self, *parts):
        """One violation, which says all of `parts`."""
        violations = list(check_includes.check_tree(self.root))
        self.assertEqual(len(violations), 1, violations)
        for part in parts:
            self.assertIn(part, violations[0])

    def test_right_tree_passes(self):
        self.assertEqual(list(check_includes.check_tree(self.root)), [])

    def test_room_includes_a_room_that_it_may_not(self):
        for room, other in [
            ("cache", "kernels"),
            ("kernels", "cache"),
            ("bytes", "program"),
            ("bytes", "pte"),
            ("program", "pte"),
            ("program", "llm"),
            ("pte", "cache"),
            ("delegate", "pte"),
            ("delegate", "kernels"),
            ("llm", "bytes"),
            ("llm", "kernels"),
            ("llm", "delegate"),
            ("llm", "apps"),
        ]:
            for name in ("x.cc", "x.h", "x_test.cc"):
                with self.subTest(room=room, other=other, name=name):
                    self.restore()
                    self.append(f"offgraph/{room}/{name}", f'  #  include "offgraph/{other}/x.h"\n')
                    self.append(f"offgraph/{room}/CMakeLists.txt", f"target_sources({name})\n")
                    self.expect(f"offgraph/{room}/{name}:", f"{room} may not include {other}")

    def test_line_of_the_violation(self):
        self.append("offgraph/cache/x.cc", "\n#include <vector>\n#include <mlx/array.h>\n")
        self.expect("offgraph/cache/x.cc:5: <mlx/array.h>: cache may not include MLX; it belongs in bytes, program")

    def test_library_in_a_room_that_may_not_use_it(self):
        for room, header, library in [
            ("cache", "unistd.h", "POSIX"),
            ("cache", "sys/mman.h", "POSIX"),
            ("bytes", "hwy/highway.h", "Highway"),
            ("bytes", "immintrin.h", "intrinsics"),
            ("kernels", "mlx/array.h", "MLX"),
            ("llm", "mlx/array.h", "MLX"),
            ("delegate", "mlx/array.h", "MLX"),
            ("apps", "mlx/array.h", "MLX"),
            ("program", "executorch/runtime/core/error.h", "ExecuTorch"),
            ("llm", "flatbuffers/flatbuffers.h", "FlatBuffers"),
            ("delegate", "schema_generated.h", "FlatBuffers"),
            ("bytes", "nlohmann/json.hpp", "nlohmann-json"),
            ("llm", "CLI/CLI.hpp", "CLI11"),
        ]:
            with self.subTest(room=room, header=header):
                self.restore()
                self.append(f"offgraph/{room}/x.cc", f"#include <{header}>\n")
                self.expect(f"offgraph/{room}/x.cc:", f"{room} may not include {library}")

    def test_generated_reader_of_another_room(self):
        self.append("offgraph/llm/x.cc", '#include "offgraph/pte/schema/program_generated.h"\n')
        self.expect("llm may not include FlatBuffers")

    def test_simd_stays_out_of_headers(self):
        for line in ("#include <immintrin.h>", "#include <hwy/highway.h>"):
            self.restore()
            self.append("offgraph/kernels/x.h", line + "\n")
            self.expect("offgraph/kernels/x.h:3:", "stays out of headers")
        for line in ("__m512i Load();", "int8x16_t a;", "hn::Vec<D> v;", "int f __attribute__((vector_size(16)));"):
            self.restore()
            self.append("offgraph/kernels/x.h", line + "\n")
            self.expect("offgraph/kernels/x.h:3:", "no SIMD type in a header")

    def test_per_target_header_stays_in_the_sources_of_its_room(self):
        self.append("offgraph/kernels/x.h", '#include "offgraph/kernels/y-inl.h"\n')
        self.expect("offgraph/kernels/x.h:3:", "compiled per instruction set")
        self.restore()
        self.append("offgraph/bytes/x.cc", '#include "offgraph/kernels/y-inl.h"\n')
        self.expect("offgraph/bytes/x.cc:", "compiled per instruction set")

    def test_test_headers_are_for_tests(self):
        self.append("offgraph/llm/x.h", "#include <gtest/gtest_prod.h>\n")
        self.expect("offgraph/llm/x.h:3:", "for tests")
        self.restore()
        self.append("offgraph/kernels/x_test.cc", "#include <benchmark/benchmark.h>\n")
        self.append("offgraph/kernels/CMakeLists.txt", "target_sources(x_test.cc)\n")
        self.expect("offgraph/kernels/x_test.cc:1:", "for benchmarks")

    def test_spelling(self):
        for line, said in [
            ('#include "x.h"', 'not spelled "offgraph/<room>/<file>"'),
            ('#include "../cache/x.h"', "not spelled"),
            ('#include "mlx/array.h"', "spelled <mlx/array.h>"),
            ("#include <offgraph/cache/x.h>", 'spelled "offgraph/cache/x.h"'),
            ('#include "offgraph/attic/x.h"', "in no room"),
            ("#include SOME_HEADER", "names no file"),
            ("#include <boost/any.hpp>", "of no library"),
        ]:
            with self.subTest(line=line):
                self.restore()
                self.append("offgraph/bytes/x.cc", line + "\n")
                self.expect("offgraph/bytes/x.cc:4:", said)

    def test_file_that_no_build_file_names(self):
        for name in ("left_over.cc", "deep/left_over.cc", "x.inc"):
            with self.subTest(name=name):
                self.restore()
                self.write(f"offgraph/llm/{name}", "")
                self.append("offgraph/llm/CMakeLists.txt", f"# {name} is only spoken of\nmore_{name}\n")
                self.expect(f"offgraph/llm/{name}: no CMakeLists.txt")
                self.append("offgraph/llm/CMakeLists.txt", f"target_sources({name})\n")
                self.assertEqual(list(check_includes.check_tree(self.root)), [])

    def test_header_that_no_file_includes(self):
        self.write("offgraph/llm/left_over.h", "#pragma once\n")
        self.expect("offgraph/llm/left_over.h: no file of any room includes it")

    def test_folder_that_is_no_room(self):
        self.write("offgraph/util/x.cc", "")
        self.expect("offgraph/util: a folder that is no room")

    def test_design_says_something_else(self):
        self.replace("docs/DESIGN.md", "| program, pte, cache |", "| program, cache |")
        self.expect("docs/DESIGN.md: llm may depend on cache, program; check_includes.py says cache, program, pte")
        self.replace("docs/DESIGN.md", "| program, cache |", "| program, pte, cache, MLX |")
        self.expect("llm may depend on MLX, cache, program, pte")

    def test_design_has_other_rooms(self):
        self.append("docs/DESIGN.md", "| `attic` | Old things. | cache |\n")
        self.expect("the room attic is in the table of docs/DESIGN.md alone")
        self.write("docs/DESIGN.md", DESIGN.replace("| `pte` | Containers. | FlatBuffers |\n", ""))
        self.expect("the room pte is in the table of check_includes.py alone")

    def test_design_is_missing(self):
        (self.root / "docs/DESIGN.md").unlink()
        self.expect("docs/DESIGN.md: is not there")


if __name__ == "__main__":
    unittest.main()
