#!/usr/bin/env python3
"""Exports the small programs of this folder with ExecuTorch's exporter, and what PyTorch computes for them.

usage: make.py OUT_DIR      needs the exporter's environment (tools/setup_exporter.sh)

ring_in_graph: a language model of two layers whose caches are buffers of the graph, one a ring of 8 positions, one
    flat with 64. Method forward(ids [1, T], position [T]) -> logits [1, T, 32].
parts: two methods, forward and second (its weights differ). Each is MLX, then a gather on ExecuTorch's CPU kernels, then
    MLX again: two delegates, each with the off-graph cache of one layer. (x [1, T, 16], position [T]) -> [1, T, 16].
Beside each a .safetensors: the inputs of one long step, and the results.
"""
import pathlib
import sys

import torch
from executorch.backends.mlx.llm.cache import KVCache, RingBufferKVCache
from executorch.backends.mlx.partitioner import MLXPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.extension.llm.cache import update_and_attend  # noqa: F401 (registers the op)
from safetensors.torch import save_file
from torch import nn

HEADS, DIM, WIDTH, VOCAB, CONTEXT, WINDOW, STEP = 2, 8, 16, 32, 64, 8, 4


def heads(x):
    return x.view(1, -1, HEADS, DIM).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, ring):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.ring = ring
        if ring:
            self.cache = RingBufferKVCache(1, WINDOW, HEADS, DIM, max_write_len=STEP)
        else:
            self.cache = KVCache(1, CONTEXT, HEADS, DIM, True)

    def forward(self, x, position):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        start = position[0].item()
        torch._check(start >= 0)
        torch._check(start + x.shape[1] <= CONTEXT)
        k, v = self.cache.update(start, k, v)
        if self.ring:
            mask = self.cache.create_sliding_window_mask(start, x.shape[1])
        else:
            keys = torch.arange(CONTEXT).view(1, -1)
            mask = torch.where(keys <= position.view(-1, 1), 0.0, -torch.inf).view(1, 1, -1, CONTEXT)
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return x + y.transpose(1, 2).reshape(1, -1, WIDTH)


class RingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Attention(True), Attention(False)])
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, position):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(x)


class Part(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.layer = layer

    def forward(self, x, position):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        y = torch.ops.kvcache.update_and_attend(q, k, v, position.view(-1, 1), self.layer, DIM**-0.5, torch.float32)
        return x + y.transpose(1, 2).reshape(1, -1, WIDTH)

    def reference(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).reshape(1, -1, WIDTH)


class Parts(nn.Module):
    def __init__(self, name):
        super().__init__()
        # Weights of a program's methods share one space of names.
        self.parts = nn.ModuleDict({f"{name}_{layer}": Part(layer) for layer in range(2)})
        self.register_buffer("order", torch.randperm(WIDTH).view(1, 1, WIDTH))

    def shuffle(self, x):  # the MLX backend has no gather
        return torch.gather(x, 2, self.order.expand(1, x.shape[1], WIDTH))

    def forward(self, x, position):
        first, last = self.parts.values()
        return last(self.shuffle(first(x, position)), position)

    def reference(self, x):
        first, last = self.parts.values()
        return last.reference(self.shuffle(first.reference(x)))


def export(model, inputs, most):
    tokens = torch.export.Dim("tokens", min=1, max=most)
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, dynamic_shapes=({1: tokens}, {0: tokens}), strict=False)


def write(path, programs, **constants):
    edge = to_edge_transform_and_lower(programs, partitioner=[MLXPartitioner()], constant_methods=constants)
    program = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=True))
    path.write_bytes(program.buffer)


@torch.no_grad()
def main(out):
    torch.manual_seed(3)
    model = RingModel()
    ids = torch.randint(0, VOCAB, (1, 30))
    exported = RingModel()  # with buffers of its own
    exported.load_state_dict(model.state_dict())
    program = export(exported, (ids[:, :3], torch.arange(3)), STEP)
    write(out / "ring_in_graph.pte", {"forward": program}, get_max_ctx_len=CONTEXT, get_prefill_chunk_size=STEP)
    logits = torch.cat([model(ids[:, i : i + 1], torch.tensor([i])) for i in range(ids.shape[1])], 1)
    save_file({"ids": ids[0].int(), "logits": logits[0].contiguous()}, out / "ring_in_graph.safetensors")

    forward, second = Parts("forward"), Parts("second")
    x = torch.randn(1, 12, WIDTH)
    sample = (x[:, :3], torch.arange(3))
    write(out / "parts.pte", {"forward": export(forward, sample, CONTEXT), "second": export(second, sample, CONTEXT)})
    results = {"forward": forward.reference(x).contiguous(), "second": second.reference(x).contiguous()}
    save_file({"x": x, **results}, out / "parts.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
