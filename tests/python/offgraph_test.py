"""The module offgraph in ExecuTorch's Python runtime. Needs torch; run by CTest, which sets the environment."""

import json
import os
import struct
import threading
import unittest
from pathlib import Path

import torch

import offgraph

STORIES = Path(os.environ["OFFGRAPH_MODELS"]) / "stories260K" / "stories260K.pte"
FIXTURES = Path(os.environ["OFFGRAPH_SHARED"]) / "fixtures"

# What the model's authors publish as its greedy output, in tokens.
STORY = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426]


def step(model, tokens, position):
    """Logits [tokens, vocab] of tokens at positions from `position` on."""
    ids = torch.tensor([tokens], dtype=torch.int64)
    positions = torch.arange(position, position + len(tokens), dtype=torch.int64)
    return model.execute([ids, positions])[0][0]


def steps(model, tokens, chunk):
    rows = [step(model, tokens[i : i + chunk], i) for i in range(0, len(tokens), chunk)]
    return torch.cat(rows)


def read_reference(path):
    """ids and logits of a fixture's safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])

    def tensor(name, dtype):
        begin, end = header[name]["data_offsets"]
        flat = torch.frombuffer(bytearray(data[8 + size + begin : 8 + size + end]), dtype=dtype)
        return flat.reshape(header[name]["shape"])

    return tensor("ids", torch.int32).tolist(), tensor("logits", torch.float32)


class Stories(unittest.TestCase):
    def test_tells_the_story(self):
        model = offgraph.load(STORIES)
        ids = STORY[:1]
        while len(ids) < len(STORY):
            ids.append(int(step(model, ids[-1:], len(ids) - 1)[0].argmax()))
        self.assertEqual(ids, STORY)

    def test_reads_the_layout(self):
        layout = offgraph.load(STORIES).layout
        self.assertEqual(layout.windows, (0,) * 5)
        self.assertEqual(layout.kv_heads, (4,) * 5)
        self.assertEqual(layout.head_dims, (8,) * 5)
        self.assertEqual(layout.max_context, 512)
        self.assertEqual(layout.prefill_chunk, 512)

    def test_a_calls_memory_is_limited(self):
        model = offgraph.load(STORIES)
        offgraph.limit_step_memory(1000)
        self.addCleanup(offgraph.limit_step_memory, 0)
        with self.assertRaisesRegex(offgraph.Error, "its limit is 1000"):
            step(model, STORY, 0)
        offgraph.limit_step_memory(0)
        self.assertEqual(int(step(model, STORY[:1], 0)[0].argmax()), STORY[1])
        with self.assertRaisesRegex(offgraph.Error, "-1 bytes"):
            offgraph.limit_step_memory(-1)

    def test_chunks_never_change_a_bit(self):
        model = offgraph.load(STORIES)
        whole = steps(model, STORY, len(STORY))
        for chunk in (1, 3, 7):
            self.assertTrue(torch.equal(steps(model, STORY, chunk), whole))

    def test_position_zero_starts_over_and_a_rewind_is_exact(self):
        model = offgraph.load(STORIES)
        whole = step(model, STORY, 0)
        self.assertEqual(model.cache.length, len(STORY))
        step(model, [5, 6, 7], 0)
        self.assertEqual(model.cache.length, 3)
        step(model, STORY, 0)
        model.cache.rewind(5)
        self.assertTrue(torch.equal(step(model, STORY[5:], 5), whole[5:]))
        model.cache.clear()
        self.assertEqual(model.cache.length, 0)

    def test_two_models_have_two_caches(self):
        one, two = offgraph.load(STORIES), offgraph.load(STORIES, kv_dtype="fp16")
        expected = step(one, STORY, 0)
        step(one, STORY[:4], 0)
        step(two, STORY[:9], 0)
        self.assertEqual((one.cache.length, two.cache.length), (4, 9))
        self.assertTrue(torch.equal(step(one, STORY[4:], 4), expected[4:]))
        self.assertLess(two.cache.memory.in_use, one.cache.memory.in_use)
        self.assertGreaterEqual(one.cache.memory.peak, one.cache.memory.reserved)

    def test_the_options_reach_the_cache(self):
        model = offgraph.load(STORIES, capacity=8)
        step(model, STORY[:8], 0)
        with self.assertRaisesRegex(offgraph.Error, "8"):
            step(model, STORY[8:9], 8)
        full, window = offgraph.load(STORIES), offgraph.load(STORIES, windows=[8] * 5, sinks=2, max_step=4)
        a, b = steps(full, STORY, 4), steps(window, STORY, 4)
        self.assertTrue(torch.equal(a[:8], b[:8]))
        self.assertFalse(torch.equal(a[-1], b[-1]))

    def test_refusals_say_why(self):
        with self.assertRaisesRegex(offgraph.Error, "no such file"):
            offgraph.load("/nowhere/model.pte")
        with self.assertRaisesRegex(offgraph.Error, "has no method 'backward', but forward, get_"):
            offgraph.load(STORIES, "backward")
        with self.assertRaisesRegex(offgraph.Error, "kv_dtype is \"int8\""):
            offgraph.load(STORIES, kv_dtype="int8")
        with self.assertRaisesRegex(offgraph.Error, "windows for 2 layers"):
            offgraph.load(STORIES, windows=[8, 8])
        model = offgraph.load(STORIES)
        step(model, STORY[:4], 0)
        with self.assertRaisesRegex(offgraph.Error, "stories260K.pte: method 'forward'"):
            step(model, STORY[5:6], 5)
        self.assertEqual(model.cache.length, 4)
        step(model, STORY[4:5], 4)

    def test_a_method_without_a_cache_has_none(self):
        step(offgraph.load(STORIES), STORY[:3], 0)
        constants = offgraph.load(STORIES, "get_max_ctx_len")
        self.assertIsNone(constants.cache)
        self.assertEqual(constants.execute([])[0], 512)

    def test_threads_load_and_run(self):
        expected = step(offgraph.load(STORIES), STORY, 0)
        results = []

        def work(chunk):
            results.append(torch.equal(steps(offgraph.load(STORIES), STORY, chunk), expected))

        threads = [threading.Thread(target=work, args=(chunk,)) for chunk in (1, 2, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [True] * 3)


@unittest.skipUnless(FIXTURES.is_dir(), f"{FIXTURES} is not here")
class Fixtures(unittest.TestCase):
    def test_agree_with_their_references(self):
        # 16-bit references round after every op: see tests/delegate/plugin_test.cc.
        bounds = {"fp32": 2e-5, "fp16": 16 * 2**-11, "bf16": 16 * 2**-8}
        for path in sorted(FIXTURES.glob("*.pte")):
            with self.subTest(path.stem):
                ids, expected = read_reference(path.with_suffix(".safetensors"))
                dtype = json.loads(path.with_suffix(".json").read_text())["dtype"]
                model = offgraph.load(path)
                logits = steps(model, ids, model.layout.prefill_chunk).float()
                difference = (logits - expected).abs().max() / expected.abs().max()
                self.assertLessEqual(float(difference), bounds[dtype])


if __name__ == "__main__":
    unittest.main()
