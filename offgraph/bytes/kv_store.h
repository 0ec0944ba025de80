// KvStore: the memory of a cache. It owns the pools of all layers, and is their only writer.
//
// Pools grow on demand up to the cache's capacity and are written in place: no update ever copies a pool. On CPU a
// pool reserves addresses for its full size and takes memory page by page as rows are needed, so that growth moves
// nothing and the peak is the pool itself. On another device a pool is an MLX array that grows by a copy of its own
// rows (the peak while growing is the old and the new array of one layer).
//
// Thread rule: one thread at a time.
//
// A step:   store.Begin(requests);  ... Attend(layer, ...) for every node, evaluate ...;  store.Commit();
// Where anything throws in between, store.Abandon() leaves the lengths as they were.
#pragma once

#include <mlx/array.h>
#include <mlx/dtype.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "offgraph/cache/sequence_cache.h"
#include "offgraph/kernels/attention.h"

namespace offgraph::bytes {

// Storage type of K and V. kSame stores them in the type that they come in.
enum class KvType : uint8_t { kFloat32, kFloat16, kBFloat16, kSame };

struct KvStoreConfig {
  cache::CacheConfig cache;
  KvType k_type = KvType::kSame;
  KvType v_type = KvType::kSame;
  // Rows that each pool takes at its first use; it doubles from there. REQUIRES: > 0.
  int64_t initial_capacity = 256;
  // Bytes that all pools together may hold; 0: no limit. Growth beyond it is Error(kOutOfMemory).
  int64_t memory_limit = 0;
  // The fused CPU kernel is used where the device is a CPU. False takes the path of other devices (AttendSpec).
  bool fused = true;
};

struct MemoryInfo {
  int64_t in_use = 0;    // bytes of rows that hold live positions
  int64_t reserved = 0;  // bytes that the pools hold now
  int64_t peak = 0;      // the most that `reserved` was, copies while growing included
};

// What a node asks of its layer, beside q, k and v.
struct AttendOptions {
  float scale = 1.0F;
  float soft_cap = 0.0F;                      // 0: none
  std::optional<mlx::core::array> mask;       // explicit mask [1 or n_heads, T, keys read], bool or additive
  std::optional<mlx::core::Dtype> out_dtype;  // absent: q's type
  bool round_to_bf16 = false;                 // see kernels::AttentionOptions
};

// The sizes of a layer's attention, fixed at its first step. `k_type` and `v_type` are those in which the program
// computes K and V: what KvType::kSame stores.
struct LayerGeometry {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  mlx::core::Dtype k_type = mlx::core::float32;
  mlx::core::Dtype v_type = mlx::core::float32;
};

// Stores k and v as the open step's rows of a layer and attends: Attend, for code that calls kernels itself. It may run
// on any thread, once, before the step is committed.
//   q [n_heads, T, k_dim]   k [n_kv_heads, T, k_dim]   v [n_kv_heads, T, v_dim]   out [n_heads, T, v_dim]
using LayerAttend = std::function<void(const kernels::HeadsView& q, const kernels::HeadsView& k,
                                       const kernels::HeadsView& v, const kernels::MutableHeadsView& out)>;

// Kinds of mask that the answer of a store without a fused kernel may ask for.
enum class MaskKind : uint8_t {
  kNone,      // every query sees every key
  kCausal,    // lower right: the last query sees the last key
  kExplicit,  // `mask` of the spec, bool [T, keys]
};

// K and V windows for an attention that somebody else computes.
struct AttendSpec {
  mlx::core::array k;  // [1, n_kv_heads, keys, k_dim], oldest position first
  mlx::core::array v;  // [1, n_kv_heads, keys, v_dim]
  MaskKind mask_kind = MaskKind::kNone;
  std::optional<mlx::core::array> mask;
};

class KvStore {
 public:
  // Throws what SequenceCache throws, and kInvalidArgument for an initial capacity or limit out of range.
  explicit KvStore(const KvStoreConfig& config);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  const KvStoreConfig& config() const;
  // Lengths, rewind and clear. Steps go through the store, not through this.
  const cache::SequenceCache& sequences() const;

  // Opens a step: see SequenceCache::Begin. Memory for the step's rows is taken when a layer first attends.
  std::shared_ptr<const cache::StepPlan> Begin(std::span<const cache::StepRequest> requests);
  // Ends the step. Throws the storage fault (a value that the type cannot hold: layer, position, value) that a kernel
  // met while the step was evaluated, and kInvalidArgument where what Attend or Prepare returned was not evaluated (its
  // rows would be missing); in both cases the step is abandoned.
  void Commit();
  void Abandon() noexcept;

  // Stores k and v as this step's rows of `layer` and attends over the layer's history.
  //   q [1, n_heads, T, k_dim]   k [1, n_kv_heads, T, k_dim]   v [1, n_kv_heads, T, v_dim]
  //   result [1, n_heads, T, v_dim] (lazy, as all MLX arrays), or the spec for the caller to attend with.
  // Throws kInvalidArgument for a layer out of range, a shape that does not fit the step or the layer's earlier
  // steps, or when no step is open; kOutOfMemory where the pool cannot grow.
  std::variant<mlx::core::array, AttendSpec> Attend(int64_t layer, const mlx::core::array& q, const mlx::core::array& k,
                                                    const mlx::core::array& v, const AttendOptions& options);

  // Whether Prepare is possible, and Attend answers with an array: a CPU device, and a configuration that allows it.
  bool fused() const;
  // Takes the memory of this step's rows of `layer` and returns what stores and attends. Throws as Attend does.
  // REQUIRES: fused(), no mask in `options`; out_dtype plays no part.
  LayerAttend Prepare(int64_t layer, const LayerGeometry& geometry, const AttendOptions& options);

  void Rewind(int64_t length, cache::SequenceId sequence = 0);
  // Rewinds to 0. Pools keep their memory for what follows; Release gives it back.
  void Clear(cache::SequenceId sequence = 0);
  void Release();

  MemoryInfo memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::bytes
