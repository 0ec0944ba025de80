"""Drives the command line as a user would: exit codes, what goes to stdout and what to stderr, JSON, hostile files.

Usage: cli_test.py OFFGRAPH MODELS [unittest arguments]. Python's standard library alone.
"""

import array
import ast
import json
import os
import pathlib
import pty
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

OFFGRAPH = ""
STORIES = pathlib.Path()
# A sanitizer makes everything slower; a hang is still found.
TIMEOUT = 120


def run(*args, stdin="", **kwargs):
    """Runs offgraph; stdin is text or bytes."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [OFFGRAPH, *map(str, args)], input=data, capture_output=True, timeout=TIMEOUT, check=False, **kwargs
    )
    done.out = done.stdout.decode()
    done.err = done.stderr.decode()
    return done


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ok(self, *args, **kwargs):
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.err)
        return done

    def refused(self, code, *args, **kwargs):
        """Exit code, nothing on stdout, a message that begins with the command; returns the message."""
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, code, done.out + done.err)
        self.assertEqual(done.out, "")
        self.assertRegex(done.err, r"^offgraph[a-z ]*: \S")
        self.assertNotIn("terminate called", done.err)
        return done.err

    def copy_model(self):
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "model"
        shutil.copytree(STORIES, copy)
        return copy

    def refused_quickly(self, *args, **kwargs):
        """refused(1), within a second of processor time: a busy machine fails no test, a hang still does."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        message = self.refused(1, *args, **kwargs)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.assertLess(seconds, 10 if "san" in OFFGRAPH else 1)
        return message


class Usage(CliTest):
    def test_help_and_version_succeed_on_stdout(self):
        for args in (["--help"], ["--version"], ["run", "--help"], ["chat", "--help"], ["inspect", "--help"],
                     ["bench", "--help"], ["tokenize", "--help"]):
            done = self.ok(*args)
            self.assertNotEqual(done.out, "")
            self.assertEqual(done.err, "")
        self.assertRegex(self.ok("--version").out, r"^offgraph \d+\.\d+\.\d+\n$")

    def test_every_command_is_listed_with_an_example(self):
        for command in ("run", "chat", "inspect", "bench", "tokenize"):
            self.assertRegex(self.ok("--help").out, rf"\n  {command} ")
            self.assertIn(f"offgraph {command}", self.ok(command, "--help").out)

    def test_wrong_usage_is_exit_code_2(self):
        for args in ([], ["swim"], ["run"], ["run", STORIES, "--temp", "hot"], ["run", STORIES, "--capacity", "0"],
                     ["run", STORIES, "--kv-dtype", "fp7"], ["run", STORIES, "--threads", "0"],
                     ["run", STORIES, "--no-such-flag"], ["run", STORIES, "-p", "a", "-f", "b"],
                     ["bench", STORIES, "--prefill", "many"], ["tokenize"]):
            with self.subTest(args=args):
                self.refused(2, *args)


class Run(CliTest):
    def test_the_story(self):
        story = (STORIES / "story.txt").read_bytes()
        for args in ([], ["-p", ""], ["--threads", "1"], ["--prefill-chunk", "1"], ["--seed", "5"],
                     ["--initial-capacity", "1"], ["--window", "512"]):
            with self.subTest(args=args):
                done = self.ok("run", STORIES, "--temp", "0", *args)
                self.assertEqual(done.stdout, story)
                self.assertRegex(done.err, r"tokens per second")

    def test_a_file_with_its_tokenizer_elsewhere(self):
        lone = self.folder / "lone.pte"
        shutil.copy(STORIES / "stories260K.pte", lone)
        message = self.refused(1, "run", lone, "--temp", "0")
        self.assertIn("tokenizer.json", message)
        for tokenizer in (STORIES, STORIES / "tokenizer.json"):
            done = self.ok("run", lone, "--temp", "0", "--tokenizer", tokenizer)
            self.assertEqual(done.stdout, (STORIES / "story.txt").read_bytes())

    def test_json(self):
        done = self.ok("run", STORIES, "-p", "Once upon a time", "-n", "20", "--temp", "0", "--json")
        result = json.loads(done.out)
        self.assertEqual(done.err, "")
        self.assertEqual(len(result["tokens"]), 20)
        self.assertEqual(result["reason"], "token_limit")
        text = self.ok("run", STORIES, "-p", "Once upon a time", "-n", "20", "--temp", "0").out
        self.assertEqual(text, result["text"] + "\n")
        self.assertTrue(text.startswith(","), text)

    def test_a_prompt_from_file_and_stdin_is_the_same(self):
        prompt = self.folder / "prompt.txt"
        prompt.write_text("Lily had a")
        flags = ["-n", "12", "--temp", "0"]
        expected = self.ok("run", STORIES, "-p", "Lily had a", *flags).out
        self.assertEqual(self.ok("run", STORIES, "-f", prompt, *flags).out, expected)
        self.assertEqual(self.ok("run", STORIES, "-f", "-", *flags, stdin="Lily had a").out, expected)
        self.assertEqual(self.ok("run", STORIES, "-p", "Lily had a", "--echo", *flags).out, "Lily had a" + expected)

    def test_stdin_is_not_read_unless_asked(self):
        read_end, write_end = os.pipe()  # never written to, never closed: reading would hang
        self.addCleanup(os.close, read_end)
        self.addCleanup(os.close, write_end)
        done = subprocess.run([OFFGRAPH, "run", STORIES, "-n", "3"], stdin=read_end, capture_output=True,
                              timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_seeds_repeat_and_differ(self):
        def text(seed):
            return self.ok("run", STORIES, "-n", "40", "--temp", "1", "--seed", seed).out
        self.assertEqual(text(1), text(1))
        self.assertEqual(len({text(seed) for seed in range(5)}), 5)

    def test_stop_strings(self):
        done = json.loads(self.ok("run", STORIES, "--temp", "0", "--json", "--stop", "big, red", "--stop", "zzz").out)
        self.assertEqual(done["reason"], "stop_string")
        self.assertTrue(done["text"].endswith("she saw a "), done["text"])

    def read_npy(self, path):
        """Shape and numbers of a matrix of fp32, by the format's own description."""
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        end = 10 + int.from_bytes(data[8:10], "little")
        self.assertEqual(end % 64, 0)
        head = ast.literal_eval(data[10:end].decode())
        self.assertEqual((head["descr"], head["fortran_order"], data[end - 1:end]), ("<f4", False, b"\n"))
        numbers = array.array("f", data[end:])
        self.assertEqual(len(numbers), head["shape"][0] * head["shape"][1])
        return head["shape"], numbers

    def test_logits_of_every_position(self):
        story = (STORIES / "story.txt").read_text()[:200]
        files = [self.folder / f"{step}.npy" for step in (1, 7, 512)]
        for file, step in zip(files, (1, 7, 512)):
            done = self.ok("run", STORIES, "-p", story, "--logits", file, "--prefill-chunk", step)
            self.assertEqual(done.out, "")
            self.assertRegex(done.err, r"^logits after \d+ tokens, 512 each")
            self.assertEqual(file.read_bytes(), files[0].read_bytes())
        (rows, vocab), numbers = self.read_npy(files[0])
        self.assertEqual(vocab, 512)
        # What follows a part of the text is the most probable token of the part's last row.
        for part in ("Once upon a time", "Once upon a time, there was a little girl named Lily", story):
            reply = json.loads(self.ok("run", STORIES, "-p", part, "--temp", "0", "-n", "1", "--json").out)
            last = reply["prompt_tokens"] - 1
            row = numbers[last * vocab:(last + 1) * vocab]
            self.assertEqual(max(range(vocab), key=row.__getitem__), reply["tokens"][0])
        self.assertEqual(last, rows - 1)
        result = json.loads(self.ok("run", STORIES, "-p", "Lily", "--logits", files[0], "--json").out)
        self.assertEqual((result["vocab"], result["logits"]), (512, str(files[0])))
        self.assertEqual(self.read_npy(files[0])[0], (len(result["tokens"]), 512))

    def test_logits_that_cannot_be_written_are_an_error(self):
        self.assertIn("cannot be written", self.refused(1, "run", STORIES, "--logits", self.folder / "no" / "x.npy"))
        self.assertIn("cannot be written", self.refused(1, "run", STORIES, "--logits", "/dev/full"))
        file = self.folder / "kept.npy"
        self.refused(1, "run", STORIES, "-p", "word " * 5000, "--logits", file)
        self.assertFalse(file.exists())

    def test_a_full_cache_ends_the_text(self):
        done = json.loads(self.ok("run", STORIES, "--temp", "0", "--json", "--capacity", "30", "-n", "0").out)
        self.assertEqual(done["reason"], "cache_full")
        self.assertEqual(len(done["tokens"]), 29)
        story = (STORIES / "story.txt").read_text()
        self.assertTrue(story.startswith(done["text"]))

    def test_a_prompt_longer_than_the_capacity_is_refused_within_a_second(self):
        message = self.refused_quickly("run", STORIES, "-f", "-", stdin="word " * 5000)
        self.assertIn("512", message)

    def test_a_window_changes_the_text_past_it_only(self):
        story = (STORIES / "story.txt").read_text()
        text = self.ok("run", STORIES, "--temp", "0", "--window", "32", "--sinks", "1").out
        self.assertNotEqual(text, story)
        self.assertEqual(text[:60], story[:60])

    def test_values_out_of_range_are_refused(self):
        for flags in (["--temp", "-1"], ["--top-p", "0"], ["--sinks", "3"], ["--logit-bias", "five"],
                      ["--logit-bias", "600=1"], ["--logit-bias", "5=nan"], ["--kv-memory", "1"]):
            with self.subTest(flags=flags):
                self.refused(1, "run", STORIES, *flags)

    def test_a_steps_memory_is_limited(self):
        flags = ["run", STORIES, "--temp", "0", "-n", "8", "-p", "Once upon a time there was"]
        expected = self.ok(*flags).out
        self.assertEqual(self.ok(*flags, "--step-memory", "100000000").out, expected)
        message = self.refused(1, *flags, "--step-memory", "20000")
        self.assertRegex(message, r"stories260K\.pte: .* takes \d+ bytes, and its limit is 20000")
        self.refused(2, *flags, "--step-memory", "-1")

    def test_a_model_without_template_refuses_chat(self):
        self.assertIn("template", self.refused(1, "run", STORIES, "--chat", "-p", "hello"))
        self.assertIn("template", self.refused(1, "chat", STORIES))

    def test_stdout_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([OFFGRAPH, "run", STORIES, "-n", "5"], stdout=full, stderr=subprocess.PIPE,
                                  timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output", done.stderr)

    def test_interrupt_ends_the_text_cleanly(self):
        process = subprocess.Popen(
            [OFFGRAPH, "run", STORIES, "--temp", "1", "--seed", "1", "-n", "0", "--ignore-end", "--capacity", "2000000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, err)
        self.assertTrue(out.endswith(b"\n"))
        self.assertIn(b"cancelled", err)


class Chat(CliTest):
    """The demo's model is no chat model; a small template makes it one."""

    TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }} {% endfor %}"

    def setUp(self):
        super().setUp()
        self.model = self.copy_model()
        (self.model / "chat_template.jinja").write_text(self.TEMPLATE)
        self.flags = ["chat", self.model, "--temp", "0", "-n", "12"]

    def test_one_line_is_one_turn(self):
        done = self.ok(*self.flags, stdin="Once upon a time\n\nThe end\n")
        self.assertEqual(len(done.out.splitlines()), 2, done.out)
        first = self.ok(*self.flags, stdin="Once upon a time\n").out
        self.assertTrue(done.out.startswith(first))

    def test_undo_and_reset_are_exact(self):
        plain = self.ok(*self.flags, stdin="Once upon a time\nLily had a dog\n").out.splitlines()
        undone = self.ok(*self.flags, stdin="Once upon a time\nBob ran\n/undo\nLily had a dog\n").out.splitlines()
        self.assertEqual(undone[0], plain[0])
        self.assertEqual(undone[2], "(taken back)")
        self.assertEqual(undone[3], plain[1])
        reset = self.ok(*self.flags, stdin="Bob ran\n/reset\nOnce upon a time\n").out.splitlines()
        self.assertEqual(reset[2], plain[0])
        windowed = [*self.flags, "--window", "16"]
        plain = self.ok(*windowed, stdin="Once upon a time\nLily had a dog\n").out.splitlines()
        undone = self.ok(*windowed, stdin="Once upon a time\nBob ran\n/undo\nLily had a dog\n").out.splitlines()
        self.assertEqual(undone[3], plain[1])

    def test_undo_goes_all_the_way_back_whatever_the_template_forgets(self):
        # Only the last question is rendered, so that each keeps another part of the sequence before it.
        (self.model / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
        questions = ["Once upon a time Lily", "Once upon a time Bob", "Zebra"]
        lines = self.ok(*self.flags, stdin="\n".join([*questions, *["/undo"] * 4, *questions])).out.splitlines()
        self.assertEqual(lines[3:7], ["(taken back)"] * 3 + ["(there is nothing to take back)"])
        self.assertEqual(lines[7:], lines[:3])

    def test_cache_and_help(self):
        done = self.ok(*self.flags, stdin="/cache\n/help\n/undo\nOnce\n/cache\n/nonsense\n/exit\nnever read\n")
        lines = done.out.splitlines()
        self.assertRegex(lines[0], r"^0 of 512 tokens; 0 B in use")
        self.assertIn("(there is nothing to take back)", lines)
        self.assertRegex(lines[-1], r"^\d+ of 512 tokens; .*KiB")
        self.assertIn("/nonsense", done.err)

    def test_a_question_that_does_not_fit_ends_a_script(self):
        done = run(*self.flags, "--capacity", "64", stdin="word " * 100 + "\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("64", done.err)

    def test_a_terminal_edits_lines_and_survives_interrupts(self):
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            os.execv(OFFGRAPH, [OFFGRAPH, *map(str, self.flags)])
        self.addCleanup(os.close, terminal)

        def wait_for(pattern):
            seen = b""
            end = time.monotonic() + TIMEOUT
            while not re.search(pattern, seen):
                self.assertLess(time.monotonic(), end, seen)
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 4096)
            return seen

        wait_for(rb"> $")
        os.write(terminal, b"/cachX\x7fe\n")  # a typing error, taken back
        wait_for(rb"(?s)0 of 512 tokens.*> $")
        os.write(terminal, b"\x1b[A\n")  # arrow up: the line before
        wait_for(rb"(?s)0 of 512 tokens.*> $")
        os.write(terminal, b"half a line\x03")  # Ctrl-C drops it
        wait_for(rb"> $")
        os.write(terminal, b"/cache\n")
        wait_for(rb"(?s)0 of 512 tokens.*> $")
        os.write(terminal, b"\x04")  # Ctrl-D
        end = time.monotonic() + TIMEOUT
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.fail("Ctrl-D did not end the chat")
        self.assertEqual(os.waitstatus_to_exitcode(done[1]), 0)


class Tokenize(CliTest):
    def test_ids_and_back(self):
        flags = ["tokenize", "--tokenizer", STORIES / "tokenizer.json"]
        text = "Once upon a time, there was a  boy.\nÄé 🙂 \t end\n"
        plain = self.ok(*flags, stdin=text).out
        ids = json.loads(self.ok(*flags, "--json", stdin=text).out)
        self.assertEqual([int(word) for word in plain.split()], ids)
        self.assertEqual(self.ok(*flags, "--decode", stdin=plain).out.rstrip("\n")[:17], "Once upon a time,")
        self.assertEqual(self.ok(*flags, "--decode", stdin=json.dumps(ids)).out,
                         self.ok(*flags, "--decode", stdin=plain).out)
        self.assertEqual(json.loads(self.ok(*flags, "--json", stdin="").out), [])
        self.assertEqual(self.ok(*flags, stdin="").out, "\n")

    def test_bad_input(self):
        flags = ["tokenize", "--tokenizer", STORIES / "tokenizer.json", "--decode"]
        nested = "[" * 200000 + "]" * 200000
        for text in ("1 2 x", "99999", nested, f"[{nested}]", "[{}]", "-1", "[1, 2", "[1, \"a\"]", "1.5", "123456789012345678901234567890"):
            with self.subTest(text=text):
                self.refused(1, *flags, stdin=text)
        self.refused(1, "tokenize", "--tokenizer", "/no/such/file")


class Inspect(CliTest):
    def test_text_and_json_agree(self):
        text = self.ok("inspect", STORIES).out
        result = json.loads(self.ok("inspect", STORIES, "--json", "--context", "100", "--kv-dtype", "fp16").out)
        self.assertEqual(result["cache"]["n_caches"], 5)
        self.assertEqual(result["cache"]["windows"], [0] * 5)
        self.assertEqual(result["max_context"], 512)
        self.assertEqual(result["vocab"], 512)
        # K and V, 5 layers, 100 tokens, 4 heads of size 8, 2 bytes
        self.assertEqual(result["memory"]["cache_bytes"], 2 * 5 * 100 * 4 * 8 * 2)
        self.assertGreater(sum(op["count"] for op in result["ops"]), 50)
        for op in result["ops"]:
            self.assertIn(op["name"], text)
        self.assertGreater(result["memory"]["weight_bytes"], 1000000)

    def test_a_window_needs_less(self):
        full = json.loads(self.ok("inspect", STORIES, "--json", "--context", "512").out)
        ring = json.loads(self.ok("inspect", STORIES, "--json", "--context", "512", "--window", "32",
                                  "--prefill-chunk", "16").out)
        self.assertLess(ring["memory"]["cache_bytes"], full["memory"]["cache_bytes"] / 5)


    def test_ops_that_this_build_cannot_run_are_named(self):
        case = pathlib.Path(__file__).parents[1] / "data" / "opcases" / "metal_kernel_1024" / "model.pte"
        message = self.refused(1, "inspect", case)
        self.assertIn("MetalKernelNode", message)
        self.assertIn("export the model without", message)


class Bench(CliTest):
    def test_json_has_the_documented_form(self):
        done = self.ok("bench", STORIES, "--prefill", "16,64", "--depth", "0,40", "--decode", "4", "--reps", "1",
                       "--threads", "2", "--json")
        result = json.loads(done.out)
        self.assertEqual(result["threads"], 2)
        self.assertGreater(result["load_s"], 0)
        # The limits are measured with a buffer of 128 MiB, which is none of the model's memory.
        self.assertGreater(result["peak_rss_bytes"], 1 << 20)
        if "san" not in OFFGRAPH:
            self.assertLess(result["peak_rss_bytes"], 128 << 20)
        for limit in ("read_bytes_per_s", "int8_ops_per_s", "fp32_flops_per_s"):
            self.assertGreater(result["limits"][limit], 1e6)
        self.assertEqual([row["tokens"] for row in result["prefill"]], [16, 64])
        self.assertEqual([row["depth"] for row in result["decode"]], [0, 40])
        for row in result["prefill"] + result["decode"]:
            self.assertGreater(row["tokens_per_s"], 0)
        for row in result["decode"]:
            self.assertGreater(row["read_bytes_per_s"], 1e6)
        # Each weight of a layer and of the output head is multiplied and added once a token.
        for row in result["prefill"]:
            self.assertEqual(row["ops_per_token"], 2 * (5 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 172) + 64 * 512))
        # 5 layers, K and V, 4 heads of size 8, 4 bytes: a row is 1280 bytes, and the second starts 40 rows deeper.
        self.assertEqual(result["decode"][1]["bytes_per_token"] - result["decode"][0]["bytes_per_token"], 40 * 1280)

    def test_the_table_is_for_people(self):
        done = self.ok("bench", STORIES, "--prefill", "8", "--depth", "0", "--decode", "2", "--reps", "1")
        self.assertIn("│", done.out)
        self.assertIn("prefill", done.out)


class HostileFiles(CliTest):
    """An error within a second, exit code 1, a message that names the file."""

    def each_refused(self, path, commands=("run", "inspect", "bench")):
        for command in commands:
            with self.subTest(path=path, command=command):
                self.assertIn(path.name, self.refused_quickly(command, path))

    def test_missing_empty_and_other_kinds(self):
        self.each_refused(self.folder / "missing.pte")
        empty = self.folder / "empty.pte"
        empty.write_bytes(b"")
        self.each_refused(empty)
        self.each_refused(STORIES / "tokenizer.json")
        zeros = self.folder / "zeros.pte"
        zeros.write_bytes(bytes(100000))
        self.each_refused(zeros)
        self.each_refused(pathlib.Path(OFFGRAPH))
        bare = self.folder / "bare"
        bare.mkdir()
        self.each_refused(bare)

    def test_several_programs_in_a_folder(self):
        two = self.folder / "two"
        two.mkdir()
        for name in ("a.pte", "b.pte"):
            shutil.copy(STORIES / "stories260K.pte", two / name)
        message = self.refused(1, "inspect", two)
        self.assertIn("a.pte, b.pte", message)
        (two / "a.pte").rename(two / "model.pte")
        self.ok("inspect", two)

    def test_cut_files(self):
        whole = (STORIES / "stories260K.pte").read_bytes()
        for size in (1, 4, 8, 31, 64, 1000, 30000, len(whole) // 2, len(whole) - 100000):
            cut = self.folder / f"cut{size}.pte"
            cut.write_bytes(whole[:size])
            self.each_refused(cut, ("inspect",))

    def test_flipped_bytes_never_crash(self):
        whole = (STORIES / "stories260K.pte").read_bytes()
        generator = random.Random(1)
        flipped = self.folder / "flipped.pte"
        for case in range(60):
            data = bytearray(whole)
            # Most of the file is weights; the structures at its beginning are what can mislead.
            end = 40000 if case % 4 else len(data)
            for _ in range(generator.choice([1, 3, 20])):
                data[generator.randrange(end)] ^= 1 << generator.randrange(8)
            flipped.write_bytes(data)
            done = run("run", flipped, "--tokenizer", STORIES, "-n", "4", "--temp", "0")
            self.assertIn(done.returncode, (0, 1), f"case {case}: {done.returncode} {done.err}")
            if done.returncode == 1:
                self.assertRegex(done.err, r"^offgraph run: \S")

    def test_broken_files_beside_the_program(self):
        """Each message has the file, the part of it, what was expected and what is there."""
        for name, content, problem in (
            ("tokenizer.json", b"{", "not JSON at byte 2"),
            ("tokenizer.json", b"", "not JSON at byte 1"),
            ("tokenizer.json", b"[]", "expected an object, found a value of type array"),
            ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}',
             'model.vocab: the id of "a" is no integer'),
            ("tokenizer.json", b"[" * 100000, "nested deeper than 64"),
            ("generation_config.json", b"nonsense", "not JSON, at byte 2"),
            ("config.json", b"[1]", "holds array, expected an object"),
            ("config.json", b"[" * 100000, "not JSON, at byte 100001"),
            ("config.json", b'{"vocab_size": 1e999}', "config.json: number overflow parsing '1e999'"),
            ("generation_config.json", b'{"eos_token_id": "two"}',
             '"eos_token_id" is of type string, expected a token id or a list of them'),
            ("generation_config.json", b'{"eos_token_id": [1, -7]}', '"eos_token_id" is -7, which is no token id'),
            ("tokenizer_config.json", b'{"eos_token": 7}', '"eos_token" is of type number, expected a token\'s text'),
            ("tokenizer_config.json", b'{"add_bos_token": 1}', '"add_bos_token" is of type number, expected true'),
            ("tokenizer_config.json", b'{"chat_template": 1}', '"chat_template" is neither a text nor a list'),
            ("special_tokens_map.json", b'{"eos_token": }', "line 1"),
            ("chat_template.jinja", b"a\n{% for %}", "line 2"),
        ):
            with self.subTest(name=name, content=content[:80]):
                model = self.copy_model()
                (model / name).write_bytes(content)
                message = self.refused_quickly("run", model)
                self.assertIn(f"{model / name}: ", message)
                self.assertIn(problem, message)
                self.ok("inspect", model)  # which reads the program alone

    def test_messages_about_programs_name_the_part(self):
        whole = (STORIES / "stories260K.pte").read_bytes()
        damaged = self.folder / "damaged.pte"

        def refused(old, new, problem):
            self.assertEqual(len(old), len(new))
            at = whole.index(old)
            damaged.write_bytes(whole[:at] + new + whole[at + len(old):])
            with self.subTest(problem=problem):
                message = self.refused_quickly("inspect", damaged)
                self.assertTrue(message.startswith(f"offgraph inspect: {damaged}: "), message)
                self.assertIn(problem, message)

        refused(b"MLX0", b"MLX1", 'header: not a payload of ExecuTorch\'s MLX backend: "MLX0" is not at byte 4')
        refused(b"MLXBackend", b"XLMBackend", "exported for XLMBackend, expected MLXBackend")
        refused(b"get_windows", b"get_w\x1b[1mws", "no method get_windows")
        refused(b"layers.3.self_attn.q_proj.weight", b"layers.3.self_attn.q_proj.WEIGHT", "q_proj.")
        refused(b"forward", b"forwar\x1b", "(its methods: forwar?, ")
        damaged.write_bytes(whole[:-100000])
        self.assertRegex(self.refused_quickly("inspect", damaged),
                         r"damaged\.pte: cut short: its segments take \d+ bytes from byte \d+ on, and \d+ follow")

    def test_endless_files_beside_the_program(self):
        model = self.copy_model()
        (model / "chat_template.jinja").symlink_to("/dev/zero")
        self.assertIn("chat_template.jinja: larger than", self.refused(1, "run", model))


if __name__ == "__main__":
    OFFGRAPH = os.path.abspath(sys.argv[1])
    STORIES = pathlib.Path(sys.argv[2]).absolute() / "stories260K"
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
