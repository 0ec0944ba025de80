// Convolutions, all channels-last as MLX has them: x [N, spatial.., C_in], w [C_out, spatial.., C_in / groups].
#include <mlx/ops.h>

#include <array>

#include "offgraph/program/handler.h"

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

// MLX spells one number, a pair or a tuple.
template <int N>
auto Spell(const std::array<int, N>& sizes) {
  if constexpr (N == 1) return sizes[0];
  if constexpr (N == 2) return std::pair(sizes[0], sizes[1]);
  if constexpr (N == 3) return std::tuple(sizes[0], sizes[1], sizes[2]);
}

template <int N, auto F>
Action Convolution(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), out = operands.Tensor("out"),
          window = WindowOf<N>(operands, false)](Frame& frame) {
    frame.Set(out, F(frame.Get(x), frame.Get(w), Spell<N>(window.stride), Spell<N>(window.padding),
                     Spell<N>(window.dilation), window.groups, {}));
  };
}

template <int N, auto F>
Action Transposed(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), out = operands.Tensor("out"),
          window = WindowOf<N>(operands, true)](Frame& frame) {
    frame.Set(out, F(frame.Get(x), frame.Get(w), Spell<N>(window.stride), Spell<N>(window.padding),
                     Spell<N>(window.dilation), Spell<N>(window.output_padding), window.groups, {}));
  };
}

constexpr Handler kOps[] = {
    {"Conv1DNode", Convolution<1, mx::conv1d>},
    {"Conv2DNode", Convolution<2, mx::conv2d>},
    {"Conv3DNode", Convolution<3, mx::conv3d>},
    {"ConvTranspose1DNode", Transposed<1, mx::conv_transpose1d>},
    {"ConvTranspose2DNode", Transposed<2, mx::conv_transpose2d>},
    {"ConvTranspose3DNode", Transposed<3, mx::conv_transpose3d>},
};

}  // namespace

std::span<const Handler> ConvolutionOps() { return kOps; }

}  // namespace offgraph::program
