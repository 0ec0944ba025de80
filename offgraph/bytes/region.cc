#include "offgraph/bytes/region.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/bytes/region_impl.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {

namespace mx = mlx::core;

bool IsRegionType(mx::Dtype type) { return type == mx::float32 || type == mx::float16 || type == mx::bfloat16; }

kernels::DType ToKernelType(mx::Dtype type) {
  if (type == mx::float16) return kernels::DType::kFloat16;
  return type == mx::bfloat16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

namespace {

// Rows of a tile: few enough for the second-level cache, many enough to use what is unpacked of the weights well.
constexpr int64_t kMaxTileRows = 128;
constexpr int64_t kMinTileRows = 32;

// How a step is cut into tiles of rows. Several tiles are computed side by side, each by one thread; a single one by
// all threads together. Stages work row by row, so that the cut changes no bit.
//
// The last tiles are half as long, so that threads end together although cores differ in speed.
class Tiling {
 public:
  Tiling(int64_t tokens, int64_t threads) : tokens_(tokens), rows_(tokens), short_rows_(tokens) {
    if (tokens < kMinTileRows * threads) return;
    const int64_t rounds = CeilDiv(tokens, kMaxTileRows * threads);
    rows_ = RoundUp(CeilDiv(tokens, rounds * threads));
    short_rows_ = std::max(RoundUp(rows_ / 2), std::min(rows_, kMinTileRows));
    whole_ = CeilDiv(tokens, rows_) - threads / 2;
    count_ = whole_ + CeilDiv(tokens - whole_ * rows_, short_rows_);
    slots_ = std::min(count_, threads);
  }

  int64_t count() const { return count_; }
  int64_t slots() const { return slots_; }  // tiles under way at a time
  int64_t most_rows() const { return rows_; }
  int64_t first(int64_t tile) const {
    return std::min(tile, whole_) * rows_ + std::max<int64_t>(tile - whole_, 0) * short_rows_;
  }
  int64_t rows(int64_t tile) const { return std::min(tile < whole_ ? rows_ : short_rows_, tokens_ - first(tile)); }

 private:
  static int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
  static int64_t RoundUp(int64_t rows) {
    constexpr int64_t kBatch = 16;  // rows that kernels compute together
    return CeilDiv(rows, kBatch) * kBatch;
  }

  int64_t tokens_;
  int64_t rows_;        // of a tile
  int64_t short_rows_;  // of the last tiles
  int64_t whole_ = 0;   // tiles that are not short
  int64_t count_ = 1;
  int64_t slots_ = 1;
};

// Runs the stages of a region.
class Runner {
 public:
  Runner(const Region::Impl& impl, const Tiling& tiling, RegionRun whole, bool last_row_only)
      : impl_(impl), tiling_(tiling), whole_(whole), last_row_only_(last_row_only), taken_(tiling.slots()) {
    whole_.tile_rows = tiling.most_rows();
  }

  void Run() {
    for (size_t i = 0; i < impl_.segments.size(); ++i) {
      const RegionSegment& segment = impl_.segments[i];
      if (last_row_only_ && i >= impl_.tail) {
        RunStages(segment, whole_.tokens - 1, 1, 0, whole_.tile);
      } else if (segment.needs_all_rows || tiling_.count() == 1) {
        RunStages(segment, 0, whole_.tokens, 0, whole_.tile);
      } else {
        whole_.threads->ParallelFor(static_cast<size_t>(tiling_.count()), 1, [&](size_t begin, size_t end) {
          for (auto tile = static_cast<int64_t>(begin); tile < static_cast<int64_t>(end); ++tile) {
            const int64_t first = tiling_.first(tile);
            const Slot slot(&taken_);
            RunStages(segment, first, tiling_.rows(tile), first, SlotMemory(slot.index()));
          }
        });
      }
    }
  }

 private:
  // The memory of a tile that is under way, of which there are as many as tiles can be under way at a time.
  class Slot {
   public:
    explicit Slot(std::vector<std::atomic_flag>* taken) : taken_(*taken) {
      while (taken_[index_].test_and_set(std::memory_order_acquire)) index_ = (index_ + 1) % taken_.size();
    }
    ~Slot() { taken_[index_].clear(std::memory_order_release); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    size_t index() const { return index_; }

   private:
    std::vector<std::atomic_flag>& taken_;
    size_t index_ = 0;
  };

  float* SlotMemory(size_t slot) const {
    return whole_.tile + static_cast<int64_t>(slot) * impl_.tile_width * tiling_.most_rows();
  }

  void RunStages(const RegionSegment& segment, int64_t first_row, int64_t rows, int64_t output_row, float* tile) const {
    RegionRun run = whole_;
    run.first_row = first_row;
    run.rows = rows;
    run.output_row = output_row;
    run.tile = tile;
    for (size_t s = segment.begin; s < segment.end; ++s) {
      if (*run.probe) (*run.probe)();
      impl_.stages[s].run(run);
    }
  }

  const Region::Impl& impl_;
  const Tiling tiling_;
  RegionRun whole_;
  const bool last_row_only_;
  std::vector<std::atomic_flag> taken_;
};

}  // namespace

class RegionPrimitive : public mx::Primitive {
 public:
  RegionPrimitive(mx::Stream stream, std::shared_ptr<const Region> region, int64_t tokens,
                  std::vector<RegionAttend> attends, bool last_row_only, std::function<void()> probe)
      : Primitive(stream),
        region_(std::move(region)),
        tokens_(tokens),
        attends_(std::move(attends)),
        last_row_only_(last_row_only),
        probe_(std::move(probe)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    for (mx::array& output : outputs) output.set_data(mx::allocator::malloc(output.nbytes()));
    mx::cpu::CommandEncoder& encoder = mx::cpu::get_command_encoder(stream());
    kernels::ThreadPool& threads = kernels::ThreadPool::Default();
    const Tiling tiling(tokens_, static_cast<int64_t>(threads.threads()));
    const int arena_floats = CheckedFloats(tiling);
    mx::array arena(mx::allocator::malloc(static_cast<size_t>(arena_floats) * sizeof(float)), {arena_floats},
                    mx::float32);
    encoder.add_temporary(arena);
    // Copies of the arrays that do not count as users of their memory: MLX keeps that alive until the task ran.
    std::vector<mx::array> in;
    std::vector<mx::array> out;
    in.reserve(inputs.size());
    out.reserve(outputs.size());
    for (const mx::array& input : inputs) in.push_back(mx::array::unsafe_weak_copy(input));
    for (const mx::array& output : outputs) out.push_back(mx::array::unsafe_weak_copy(output));
    encoder.dispatch([region = region_, tiling, &threads, tokens = tokens_, attends = attends_, last = last_row_only_,
                      probe = probe_, memory = arena.data<float>(), in = std::move(in),
                      out = std::move(out)]() mutable {
      const Region::Impl& impl = *region->impl_;
      const RegionRun whole{.arena = memory,
                            .tokens = tokens,
                            .tile = memory + impl.arena_width * tokens,
                            .places = &impl.places,
                            .inputs = &in,
                            .outputs = &out,
                            .attends = &attends,
                            .threads = &threads,
                            .probe = &probe};
      Runner(impl, tiling, whole, last).Run();
    });
  }
  void eval_gpu(const std::vector<mx::array>& /*inputs*/, std::vector<mx::array>& /*outputs*/) override {
    throw Error(ErrorCode::kInternal, "a region of CPU kernels was asked to run on another device");
  }
  const char* name() const override { return "offgraph::Region"; }

 private:
  // Of the arena, and of the tiles behind it.
  int CheckedFloats(const Tiling& tiling) const {
    int64_t floats = 0;
    int64_t tile_floats = 0;
    if (__builtin_mul_overflow(region_->impl_->arena_width, tokens_, &floats) ||
        __builtin_mul_overflow(region_->impl_->tile_width, tiling.slots() * tiling.most_rows(), &tile_floats) ||
        __builtin_add_overflow(floats, tile_floats, &floats) || floats > INT32_MAX) {
      throw Error(ErrorCode::kOutOfRange, "a step of " + std::to_string(tokens_) + " tokens needs more than " +
                                              std::to_string(INT32_MAX) + " intermediate values; split it");
    }
    return static_cast<int>(floats);
  }

  std::shared_ptr<const Region> region_;
  int64_t tokens_;
  std::vector<RegionAttend> attends_;
  bool last_row_only_;
  std::function<void()> probe_;
};

Region::Region(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Region::~Region() = default;

int64_t Region::arena_width() const { return impl_->arena_width + impl_->tile_width; }

std::vector<mx::array> Region::Run(const std::shared_ptr<const Region>& region, int64_t tokens,
                                   const std::vector<mx::array>& inputs, std::vector<RegionAttend> attends,
                                   bool last_row_only, std::function<void()> probe) {
  const auto rows = static_cast<mx::ShapeElem>(last_row_only ? 1 : tokens);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> types;
  shapes.reserve(region->impl_->outputs.size());
  types.reserve(region->impl_->outputs.size());
  for (const RegionOutput& output : region->impl_->outputs) {
    const auto dim = static_cast<mx::ShapeElem>(output.dim);
    mx::Shape shape{1, rows, dim};
    if (output.heads > 1) shape.insert(shape.begin() + 2, static_cast<mx::ShapeElem>(output.heads));
    shapes.push_back(std::move(shape));
    types.push_back(output.type);
  }
  auto primitive = std::make_shared<RegionPrimitive>(mx::default_stream(mx::Device::cpu), region, tokens,
                                                     std::move(attends), last_row_only, std::move(probe));
  return mx::array::make_arrays(std::move(shapes), types, primitive, inputs);
}

}  // namespace offgraph::bytes
