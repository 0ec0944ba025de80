#!/usr/bin/env python3
"""Writes expected.json: the probabilities that Hugging Face transformers' logits processors leave for random logits.

Needs torch and transformers. Presence and frequency penalty and the bias, which transformers lacks, follow vLLM
(vllm/v1/sample/ops/penalties.py and logit_bias.py) and are spelled out here.
"""

import json
import pathlib

import torch
from transformers.generation import logits_process as hf

VOCAB = 60
OPTIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0, "top_k": 5},
    {"top_k": 1},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 1.7},
    {"top_p": 0.01},
    {"min_p": 0.1},
    {"min_p": 0.02, "temperature": 2.0, "top_k": 30, "top_p": 0.95},
    {"top_k": 10, "top_p": 0.5},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "top_p": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7, "temperature": 0.8},
    {"frequency_penalty": -0.4, "presence_penalty": -0.3, "repetition_penalty": 1.1, "top_k": 20},
    {"logit_bias": [[3, 4.0], [7, -100.0], [3, 1.0]], "top_p": 0.95},
]


def probabilities(logits, prompt, reply, options):
    x = logits.clone()
    for token, bias in options.get("logit_bias", []):
        x[token] += bias
    ids = torch.tensor([prompt + reply])
    x = x[None]
    if "repetition_penalty" in options:
        x = hf.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])(ids, x)
    for token in set(reply):
        x[0, token] -= options.get("frequency_penalty", 0.0) * reply.count(token)
        x[0, token] -= options.get("presence_penalty", 0.0)
    if "temperature" in options:
        x = hf.TemperatureLogitsWarper(options["temperature"])(ids, x)
    if "top_k" in options:
        x = hf.TopKLogitsWarper(options["top_k"])(ids, x)
    if "top_p" in options:
        x = hf.TopPLogitsWarper(options["top_p"])(ids, x)
    if "min_p" in options:
        x = hf.MinPLogitsWarper(options["min_p"])(ids, x)
    return torch.softmax(x[0].double(), -1)


def main():
    torch.manual_seed(5)
    cases = []
    for options in OPTIONS:
        logits = (torch.randn(VOCAB) * 2.5).round(decimals=3)
        logits[11] = float("-inf")
        prompt = torch.randint(0, VOCAB, (12,)).tolist()
        reply = torch.randint(0, 12, (9,)).tolist()
        p = probabilities(logits, prompt, reply, options)
        cases.append(
            {
                "options": options,
                "logits": [None if v == float("-inf") else v for v in logits.tolist()],
                "prompt": prompt,
                "reply": reply,
                "probabilities": [round(v, 9) for v in p.tolist()],
                "logprobs": [None if v == float("-inf") else round(v, 6) for v in torch.log_softmax(logits, -1).tolist()],
            }
        )
    text = json.dumps({"cases": cases}, indent=None).replace('}, {"options"', '},\n{"options"')
    (pathlib.Path(__file__).parent / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
