// Kernels that work on one token's row at a time: norms, rotary embedding, activations, sums and products, embedding
// look-up. Raw pointers, counts and strides; no tensor.
//
// Values are fp32 in memory. Where a model computes in fp16 or bf16, each kernel rounds its results to that type, and
// rounds where the chain of ops that it stands for would have rounded: the values are those of the chain.
//
// Bits: a row depends on itself alone. For one instruction set the order of additions is fixed by the width.
//
// Thread rule: all functions may be called from any thread; they spread over `threads` and return when all is done.
#pragma once

#include <cstdint>

#include "offgraph/kernels/dtype.h"
#include "offgraph/kernels/quantized.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::kernels {

// fp32 values [rows, heads, dim], element (r, h, i) at data + r * row_stride + h * head_stride + i.
struct Block {
  float* data = nullptr;
  int64_t row_stride = 0;
  int64_t heads = 1;
  int64_t head_stride = 0;
  int64_t dim = 0;
};

// Results may be written where the operand lies (out equals x), but must not overlap it otherwise.

// out = round(round(x / sqrt(mean(x^2) + eps)) * weight), over dim. `weight` [dim] or null. (Zhang and Sennrich 2019,
// arXiv:1910.07467)
void RmsNorm(int64_t rows, const Block& x, const float* weight, float eps, DType round, const Block& out,
             ThreadPool& threads);

// out = round(round(round((x - mean) / sqrt(variance + eps)) * weight) + bias). `weight` and `bias` [dim] or null.
void LayerNorm(int64_t rows, const Block& x, const float* weight, const float* bias, float eps, DType round,
               const Block& out, ThreadPool& threads);

// out = round(round(x * cos) + round(rotate_half(x) * sin)), where rotate_half([a, b]) = [-b, a] over halves of dim.
//   cos, sin [rows, dim], contiguous. REQUIRES: dim is even.
void Rotary(int64_t rows, const Block& x, const float* cos, const float* sin, DType round, const Block& out,
            ThreadPool& threads);

enum class Activation : uint8_t {
  kCopy,      // x
  kNegate,    // -x
  kSilu,      // x / (1 + exp(-x))
  kGelu,      // x (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kSigmoid,   // 1 / (1 + exp(-x))
  kTanh,
};

// out = round(activation(x)).
void Activate(int64_t rows, Activation activation, const Block& x, DType round, const Block& out, ThreadPool& threads);

// out = round(round(activation(gate)) * up).
void Gate(int64_t rows, Activation activation, const Block& gate, const Block& up, DType round, const Block& out,
          ThreadPool& threads);

enum class Arithmetic : uint8_t { kAdd, kSubtract, kMultiply, kDivide };

// out = round(a op b). An operand with a row_stride of 0 is the same for all rows, one with a head_stride of 0 for all
// heads.
void Combine(int64_t rows, Arithmetic op, const Block& a, const Block& b, DType round, const Block& out,
             ThreadPool& threads);

// out[r] = table[index[r]], over out.dim columns of one head.
//   index [rows], each in [0, rows of the table)
void EmbedDense(int64_t rows, const int64_t* index, const MatrixView& table, const Block& out, ThreadPool& threads);
// out[r] = round(round(scale * code) + bias) of row index[r].
void EmbedQuantized(int64_t rows, const int64_t* index, const QuantizedView& table, DType round, const Block& out,
                    ThreadPool& threads);

// Conversions between fp32 blocks and contiguous rows [rows, heads * dim] of any type.
void LoadRows(int64_t rows, const void* data, DType type, const Block& out, ThreadPool& threads);
void SaveRows(int64_t rows, const Block& x, void* data, DType type, ThreadPool& threads);

}  // namespace offgraph::kernels
