"""OpenVINO GenAI, measured as offgraph is. Runs in its own environment, which bench.py makes.

  bench MODEL KV THREADS CAPACITY PREFILL,... DEPTH,... DECODE REPS   prints the JSON of `offgraph bench --json`
  first MODEL KV THREADS CAPACITY PROMPT                              prints the first token of the reply

MODEL is a GGUF file. KV is the storage of K and V: f16, or default (its own choice, 8 bits on processors like these).
The pipeline grows its cache as needed, so CAPACITY only names what the others were given. Prefill is the time to the
first token, decode the mean time of those that follow, both as the pipeline itself reports them.
"""
import json
import statistics
import sys
import time

START = time.monotonic()

import numpy
import openvino
import openvino_genai


def peak_rss():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


class Peer:
    def __init__(self, model, threads, kv):
        properties = {"INFERENCE_NUM_THREADS": threads}
        if kv != "default":
            properties["KV_CACHE_PRECISION"] = kv
        self.pipeline = openvino_genai.LLMPipeline(model, "CPU", **properties)
        self.runs = 0

    def tokens(self, count):
        """The tokens that the other peers take, but for the first: it differs from run to run, so that no run finds
        its prompt in the pipeline's prefix cache."""
        self.runs += 1
        ids = (numpy.arange(count, dtype=numpy.int64) * 7919 + 11) % 49152
        ids[0] = 1000 + self.runs
        return ids[None]

    def generate(self, ids, new_tokens):
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        return self.pipeline.generate(inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, ignore_eos=True,
                                      do_sample=False, apply_chat_template=False).perf_metrics


def bench(model, kv, threads, _capacity, prefill, depth, decode, reps):
    peer = Peer(model, int(threads), kv)
    peer.generate(peer.tokens(1), 1)
    load_s = time.monotonic() - START
    peer.generate(peer.tokens(16), 2)
    result = {"threads": int(threads), "load_s": load_s, "prefill": [], "decode": []}
    for count in map(int, prefill.split(",")):
        seconds = [peer.generate(peer.tokens(count), 1).get_ttft().mean / 1e3 for _ in range(int(reps))]
        result["prefill"].append({"tokens": count, "tokens_per_s": count / statistics.median(seconds)})
    for count in map(int, depth.split(",")):
        # The first token of a reply belongs to the prefill: `decode` tokens follow it. A prompt cannot be empty.
        seconds = [peer.generate(peer.tokens(max(count, 1)), int(decode) + 1).get_tpot().mean / 1e3
                   for _ in range(int(reps))]
        result["decode"].append({"depth": count, "tokens_per_s": 1 / statistics.median(seconds)})
    result["peak_rss_bytes"] = peak_rss()
    print(json.dumps(result))


def first(model, kv, threads, _capacity, prompt):
    peer = Peer(model, int(threads), kv)
    reply = peer.pipeline.generate(prompt, max_new_tokens=1, do_sample=False, apply_chat_template=False)
    print(reply, end="", flush=True)


if __name__ == "__main__":
    {"bench": bench, "first": first}[sys.argv[1]](*sys.argv[2:])
