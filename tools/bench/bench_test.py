"""Tests of the benchmark scripts: statistics, ratios, tables, and the comparison of logits (with numpy only)."""
import json
import pathlib
import re
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import environments
import models
import report
import runners

try:
    import numpy

    import accuracy
except ImportError:
    numpy = None

SETUP = runners.Setup(prefill="512", depth="0,2048")


def bench_line(runner, round_number, speed, quiet=True, limits=False, group="4-bit"):
    read = {"bytes_per_token": 100, "read_bytes_per_s": 100000} if limits else {}
    decode = [{"depth": 0, "tokens_per_s": speed, **read},
              {"depth": 2048, "tokens_per_s": speed / 2}]
    result = {"load_s": 1 / speed, "peak_rss_bytes": 2**20 * 64, "decode": decode,
              "prefill": [{"tokens": 512, "tokens_per_s": 10 * speed}]}
    if limits:
        result["limits"] = {"read_bytes_per_s": 50000, "int8_ops_per_s": 1}
    return {"kind": "bench", "runner": runner, "group": group, "round": round_number, "quiet": quiet, "result": result}


def column(group, title):
    return [c.title for c in group.columns].index(title)


class Statistics(unittest.TestCase):
    def test_medians_take_quiet_rounds_only(self):
        lines = [bench_line("offgraph-4w", r, speed, quiet) for r, (speed, quiet) in
                 enumerate([(100, True), (1, False), (300, True), (200, True), (2, False)])]
        [group] = report.summarize(lines, SETUP)
        figure = group.rows["offgraph-4w"][column(group, "decode at 0")]
        self.assertEqual((figure.median, figure.low, figure.high, figure.noisy), (200, 100, 300, False))

    def test_noisy_rounds_count_and_are_marked_where_too_few_are_quiet(self):
        lines = [bench_line("offgraph-4w", r, speed, quiet) for r, (speed, quiet) in
                 enumerate([(100, True), (1, False), (3, False), (200, True), (2, False)])]
        [group] = report.summarize(lines, SETUP)
        figure = group.rows["offgraph-4w"][column(group, "decode at 0")]
        self.assertEqual((figure.median, figure.noisy), (3, True))
        self.assertIn("3.00*", report.draw(group))

    def test_ratios_are_taken_round_by_round(self):
        # The machine slows down to a tenth in the second round: the ratio stays.
        speeds = {"offgraph-4w": [220, 22, 220], "llama-Q4_0": [200, 20, 200], "llama-Q4_1": [100, 10, 100]}
        lines = [bench_line(name, r, speed) for name, values in speeds.items() for r, speed in enumerate(values)]
        [group] = report.summarize(lines, SETUP)
        ratio, peer = group.ratios["offgraph-4w"][column(group, "decode at 0")]
        self.assertEqual(peer, "llama-Q4_0")
        self.assertAlmostEqual(ratio.low, 1.1)
        self.assertAlmostEqual(ratio.high, 1.1)
        # Less time is better: the ratio is the other way round.
        ratio, peer = group.ratios["offgraph-4w"][column(group, "load, ms")]
        self.assertEqual(peer, "llama-Q4_0")
        self.assertAlmostEqual(ratio.median, 1.1)

    def test_groups_are_not_compared_with_each_other(self):
        lines = [bench_line("offgraph-4w", 0, 10), bench_line("llama-Q8_0", 0, 99, group="8-bit")]
        four, eight = report.summarize(lines, SETUP)
        self.assertEqual(four.ratios["offgraph-4w"], [None] * len(four.columns))
        self.assertEqual((four.name, eight.name, eight.ratios), ("4-bit", "8-bit", {}))

    def test_share_of_the_limit_where_the_result_tells(self):
        [group] = report.summarize([bench_line("offgraph-4w", 0, 750, limits=True)], SETUP)
        shares = group.shares["offgraph-4w"]
        self.assertAlmostEqual(shares[column(group, "decode at 0")].median, 0.75)
        self.assertIsNone(shares[column(group, "decode at 2048")])
        self.assertIn("75 %", report.draw(group))

    def test_first_token_lines_have_their_own_column(self):
        line = {"kind": "first", "runner": "offgraph-4w", "group": "4-bit", "round": 0, "quiet": True,
                "result": {"first_token_s": 0.25}}
        [group] = report.summarize([line], SETUP)
        self.assertEqual(group.rows["offgraph-4w"][column(group, "first token, ms")].median, 250)
        self.assertIsNone(group.rows["offgraph-4w"][column(group, "decode at 0")])


class Tables(unittest.TestCase):
    def setUp(self):
        lines = [bench_line(name, r, speed + r) for name, speed in (("offgraph-4w", 1234), ("llama-Q4_0", 56))
                 for r in range(3)]
        [self.group] = report.summarize(lines, SETUP)

    def test_all_lines_of_a_drawn_table_are_equally_wide(self):
        self.assertEqual(len({len(line) for line in report.draw(self.group).splitlines()}), 1)

    def test_markdown_has_the_same_cells_in_every_row(self):
        counts = {line.count("|") for line in report.markdown(self.group).splitlines()}
        self.assertEqual(counts, {len(self.group.columns) + 2})
        self.assertIn("1,235 [1,234–1,236]", report.markdown(self.group))

    def test_json_can_be_written(self):
        ratios = json.loads(json.dumps(report.to_json(self.group)))["ratios"]["offgraph-4w"]
        self.assertEqual(ratios["decode at 0"]["peer"], "llama-Q4_0")


class Files(unittest.TestCase):
    def test_every_list_is_pinned(self):
        for name in ("BENCH_LLAMA", "BENCH_OPENVINO", "BENCH_MODEL"):
            for package in environments.pinned(name):
                self.assertRegex(package, r"^[\w-]+==[\w.]+$")

    def test_absent_models_are_named_with_what_makes_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for runner in runners.RUNNERS:
                with self.assertRaisesRegex(environments.Unavailable, "is absent; to make it: tools/(export|bench)"):
                    models.path(pathlib.Path(folder), runner.model)

    def test_every_group_has_offgraph_and_a_peer(self):
        for group in {runner.group for runner in runners.RUNNERS}:
            ours = [runner.is_offgraph for runner in runners.RUNNERS if runner.group == group]
            self.assertTrue(any(ours) and not all(ours), group)

    def test_a_program_that_prints_nothing_has_no_first_token(self):
        self.assertGreater(runners.run_first(["echo", "x"], 3)["first_token_s"], 0)
        with self.assertRaisesRegex(runners.Failed, "printed nothing"):
            runners.run_first(["true"], 1)

    def test_a_program_that_fails_says_why(self):
        for run in (runners.run_bench, lambda command: runners.run_first(command, 1)):
            with self.assertRaisesRegex(runners.Failed, re.compile("status 3.*the reason", re.DOTALL)):
                run(["sh", "-c", "echo the reason >&2; exit 3"])


@unittest.skipUnless(numpy, "numpy is not installed")
class Accuracy(unittest.TestCase):
    def test_divergence_of_two_tokens_by_hand(self):
        # p = (1/2, 1/2), q = (1/4, 3/4): KL = (log 2 + log 2/3) / 2.
        p = numpy.zeros((3, 2), numpy.float32)
        q = numpy.tile(numpy.log([[1, 3]]).astype(numpy.float32), (3, 1)) + 7
        divergence, same = accuracy.compare(p, q)
        numpy.testing.assert_allclose(divergence, numpy.log(4 / 3) / 2, rtol=1e-6)
        self.assertFalse(same.any())

    def test_equal_dumps_do_not_diverge(self):
        logits = numpy.random.default_rng(1).normal(size=(150, 33)).astype(numpy.float32) * 10
        divergence, same = accuracy.compare(logits, logits.copy())
        self.assertEqual((float(abs(divergence).max()), same.all(), len(same)), (0.0, True, 150))

    def test_different_shapes_are_refused(self):
        with self.assertRaisesRegex(ValueError, r"\[2, 3\] and \[2, 4\]"):
            accuracy.compare(numpy.zeros((2, 3), numpy.float32), numpy.zeros((2, 4), numpy.float32))

    def test_both_file_types_are_read(self):
        logits = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
        with tempfile.TemporaryDirectory() as folder:
            numpy.save(f"{folder}/a.npy", logits)
            head = json.dumps({"ids": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
                               "logits": {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]}}).encode()
            pathlib.Path(f"{folder}/b.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"\0" * 4 +
                                                                logits.tobytes())
            numpy.testing.assert_array_equal(accuracy.load(f"{folder}/a.npy"), logits)
            numpy.testing.assert_array_equal(accuracy.load(f"{folder}/b.safetensors"), logits)
            numpy.save(f"{folder}/c.npy", logits.astype(numpy.float64))
            with self.assertRaisesRegex(ValueError, "expected float32"):
                accuracy.load(f"{folder}/c.npy")


if __name__ == "__main__":
    unittest.main()
