// What a user decides about a cache: how many tokens it holds, and for each layer how far back it can look.
#pragma once

#include <cstdint>
#include <vector>

namespace offgraph::cache {

// How one layer keeps its history.
struct LayerConfig {
  // How many of the newest positions a query sees, itself included; 0 means all of them (full attention).
  // A layer with a window keeps its rows in a ring; a layer without keeps them flat. REQUIRES: >= 0.
  int64_t window = 0;
  // With a window: the first `sinks` positions of a sequence stay visible for ever (attention sinks, Xiao et al.
  // 2023, arXiv:2309.17453, as a mask: positions are not renumbered). They do not count towards the window.
  // REQUIRES: >= 0, and 0 where window is 0.
  int64_t sinks = 0;
};

struct CacheConfig {
  // Tokens that one sequence may hold. REQUIRES: > 0.
  int64_t capacity = 0;
  // Layers that own K and V. REQUIRES: 0 < n_layers <= kMaxLayers.
  int64_t n_layers = 0;
  // One entry for all layers, or n_layers entries. There is no default: a model with windows that runs as if it had
  // none computes something else, and nothing would tell.
  std::vector<LayerConfig> layers;
  // The longest step, in tokens, that a ring admits. A ring has
  //   min(capacity, window + max_step - 1 + rewind_reserve)
  // rows, and its sinks have rows of their own. A layer whose rows cover the whole capacity never wraps: it is flat,
  // and takes any step. REQUIRES: > 0.
  int64_t max_step = 512;
  // Extra ring rows. A rewind is exact by up to max_step + rewind_reserve tokens from the highest position ever
  // written: the rows that the longest step must not overwrite serve a rewind as well. REQUIRES: >= 0.
  int64_t rewind_reserve = 0;
};

// More than any model has: a count beyond it is a damaged file, and is refused before memory is taken for it.
inline constexpr int64_t kMaxLayers = 65536;

}  // namespace offgraph::cache
