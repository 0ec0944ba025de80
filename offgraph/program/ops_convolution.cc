// Convolutions, all channels-last as MLX has them: x [N, spatial.., C_in], w [C_out, spatial.., C_in / groups].
#include <mlx/ops.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// The suffixes of the fields' names by number of spatial axes.
template <int N>
constexpr std::array<const char*, N> Suffixes() {
  if constexpr (N == 1) return {""};
  if constexpr (N == 2) return {"_h", "_w"};
  if constexpr (N == 3) return {"_d", "_h", "_w"};
}

template <int N>
struct Window {
  std::array<int, N> stride;
  std::array<int, N> padding;
  std::array<int, N> dilation;
  std::array<int, N> output_padding;
  int groups;
};

template <int N>
std::array<int, N> Sizes(const Operands& operands, const std::string& name, int minimum) {
  std::array<int, N> sizes{};
  for (int i = 0; i < N; ++i) {
    const std::string field = name + Suffixes<N>()[static_cast<size_t>(i)];
    sizes[static_cast<size_t>(i)] = operands.Int(field);
    if (sizes[static_cast<size_t>(i)] < minimum) {
      operands.Fail(field + " is " + std::to_string(sizes[static_cast<size_t>(i)]) + ", must be at least " +
                    std::to_string(minimum));
    }
  }
  return sizes;
}

template <int N>
Window<N> WindowOf(const Operands& operands, bool transposed) {
  Window<N> window{Sizes<N>(operands, "stride", 1),
                   Sizes<N>(operands, "padding", 0),
                   Sizes<N>(operands, "dilation", 1),
                   {},
                   operands.Int("groups")};
  if (transposed) window.output_padding = Sizes<N>(operands, "output_padding", 0);
  if (window.groups < 1) operands.Fail("groups is " + std::to_string(window.groups) + ", must be at least 1");
  return window;
}

// MLX computes with sizes of 32 bits, and does not check all that it is given.
template <int N>
void CheckShapes(const mx::array& x, const mx::array& w, const Window<N>& window, bool transposed) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::kInvalidArgument, problem + ": a tensor of shape " + ShapeText(x.shape()) +
                                                 " and a filter of shape " + ShapeText(w.shape()));
  };
  if (x.ndim() != N + 2 || w.ndim() != N + 2 || x.size() == 0 || w.size() == 0) {
    refuse(std::to_string(N) + " axes of positions, a first and a last one, and no empty one, are needed");
  }
  if (x.shape(-1) != int64_t{w.shape(-1)} * window.groups || w.shape(0) % window.groups != 0) {
    refuse("channels that do not fit " + std::to_string(window.groups) + " groups");
  }
  for (size_t i = 0; i < N; ++i) {
    const int64_t size = x.shape(static_cast<int>(i) + 1);
    const int64_t reach = int64_t{window.dilation[i]} * (w.shape(static_cast<int>(i) + 1) - 1) + 1;
    const int64_t padded = size + int64_t{2} * window.padding[i];
    const int64_t spread = (size - 1) * window.stride[i] + reach + window.output_padding[i];
    const int64_t result = transposed ? spread - int64_t{2} * window.padding[i] : padded - reach + 1;
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (reach > kMost || padded > kMost || spread > kMost || result < 1) {
      refuse("a window that does not fit on axis " + std::to_string(i + 1));
    }
  }
}

// Products of sizes that come from a file: they stop at the largest number instead of overflowing.
int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// MLX copies the input with its padding, and then the window of every result: neither is a result that the step's
// memory is counted by. REQUIRES: CheckShapes accepted them.
template <int N>
void TakeWindows(Frame& frame, const mx::array& x, const mx::array& w, const Window<N>& window, bool transposed) {
  int64_t padded = Times(x.shape(0), x.shape(-1));
  int64_t windows = padded;
  for (int i = 0; i < N; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t reach = int64_t{window.dilation[at]} * (w.shape(i + 1) - 1) + 1;
    int64_t size = int64_t{x.shape(i + 1)} + 2 * int64_t{window.padding[at]};
    int64_t results = (size - reach) / window.stride[at] + 1;
    if (transposed) {
      size = int64_t{x.shape(i + 1)} * window.stride[at] + window.output_padding[at] + reach;
      results = size;
    }
    padded = Times(padded, size);
    windows = Times(windows, Times(results, w.shape(i + 1)));
  }
  const auto element = static_cast<int64_t>(x.itemsize());
  frame.TakeMemory(Times(padded, element), "a convolution's padded input");
  frame.TakeMemory(Times(windows, element), "a convolution's windows");
}

// MLX spells one number, a pair or a tuple.
template <int N>
auto Spell(const std::array<int, N>& sizes) {
  if constexpr (N == 1) return sizes[0];
  if constexpr (N == 2) return std::pair(sizes[0], sizes[1]);
  if constexpr (N == 3) return std::tuple(sizes[0], sizes[1], sizes[2]);
}

// MLX has no groups over three axes: each is a convolution of its own there. `convolve` takes x, w and their groups.
template <int N, typename Convolve>
mx::array InGroups(const mx::array& x, const mx::array& w, int groups, Convolve convolve) {
  if (N < 3 || groups == 1) return convolve(x, w, groups);
  const std::vector<mx::array> inputs = mx::split(x, groups, -1);
  const std::vector<mx::array> filters = mx::split(w, groups, 0);
  std::vector<mx::array> outputs;
  for (size_t i = 0; i < inputs.size(); ++i) outputs.push_back(convolve(inputs[i], filters[i], 1));
  return mx::concatenate(outputs, -1);
}

template <int N, auto F>
Action Convolution(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), out = operands.Tensor("out"),
          window = WindowOf<N>(operands, false)](Frame& frame) {
    CheckShapes<N>(frame.Get(x), frame.Get(w), window, false);
    TakeWindows<N>(frame, frame.Get(x), frame.Get(w), window, false);
    const auto convolve = [&](const mx::array& input, const mx::array& filter, int groups) {
      return F(input, filter, Spell<N>(window.stride), Spell<N>(window.padding), Spell<N>(window.dilation), groups, {});
    };
    frame.Set(out, InGroups<N>(frame.Get(x), frame.Get(w), window.groups, convolve));
  };
}

template <int N, auto F>
Action Transposed(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), out = operands.Tensor("out"),
          window = WindowOf<N>(operands, true)](Frame& frame) {
    CheckShapes<N>(frame.Get(x), frame.Get(w), window, true);
    TakeWindows<N>(frame, frame.Get(x), frame.Get(w), window, true);
    const auto convolve = [&](const mx::array& input, const mx::array& filter, int groups) {
      return F(input, filter, Spell<N>(window.stride), Spell<N>(window.padding), Spell<N>(window.dilation),
               Spell<N>(window.output_padding), groups, {});
    };
    frame.Set(out, InGroups<N>(frame.Get(x), frame.Get(w), window.groups, convolve));
  };
}

constexpr Handler kOps[] = {
    {"Conv1DNode", "convolution over one axis, channels last", Convolution<1, mx::conv1d>},
    {"Conv2DNode", "convolution over two axes, channels last", Convolution<2, mx::conv2d>},
    {"Conv3DNode", "convolution over three axes, channels last", Convolution<3, mx::conv3d>},
    {"ConvTranspose1DNode", "transposed convolution over one axis, channels last", Transposed<1, mx::conv_transpose1d>},
    {"ConvTranspose2DNode", "transposed convolution over two axes, channels last", Transposed<2, mx::conv_transpose2d>},
    {"ConvTranspose3DNode", "transposed convolution over three axes, channels last",
     Transposed<3, mx::conv_transpose3d>},
};

}  // namespace

std::span<const Handler> ConvolutionOps() { return kOps; }

}  // namespace offgraph::program
