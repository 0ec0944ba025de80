#include "offgraph/bytes/region.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>

#include <string>
#include <utility>

#include "offgraph/bytes/region_impl.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {

namespace mx = mlx::core;

bool IsRegionType(mx::Dtype type) { return type == mx::float32 || type == mx::float16 || type == mx::bfloat16; }

kernels::DType ToKernelType(mx::Dtype type) {
  if (type == mx::float16) return kernels::DType::kFloat16;
  return type == mx::bfloat16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

class RegionPrimitive : public mx::Primitive {
 public:
  RegionPrimitive(mx::Stream stream, std::shared_ptr<const Region> region, int64_t tokens,
                  std::vector<RegionAttend> attends, bool last_row_only)
      : Primitive(stream),
        region_(std::move(region)),
        tokens_(tokens),
        attends_(std::move(attends)),
        last_row_only_(last_row_only) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    for (mx::array& output : outputs) output.set_data(mx::allocator::malloc(output.nbytes()));
    mx::cpu::CommandEncoder& encoder = mx::cpu::get_command_encoder(stream());
    const int arena_floats = CheckedArena();
    mx::array arena(mx::allocator::malloc(static_cast<size_t>(arena_floats) * sizeof(float)), {arena_floats},
                    mx::float32);
    encoder.add_temporary(arena);
    // Copies of the arrays that do not count as users of their memory: MLX keeps that alive until the task ran.
    std::vector<mx::array> in;
    std::vector<mx::array> out;
    for (const mx::array& input : inputs) in.push_back(mx::array::unsafe_weak_copy(input));
    for (const mx::array& output : outputs) out.push_back(mx::array::unsafe_weak_copy(output));
    encoder.dispatch([region = region_, tokens = tokens_, attends = attends_, last = last_row_only_,
                      memory = arena.data<float>(), in = std::move(in), out = std::move(out)]() mutable {
      const Region::Impl& impl = *region->impl_;
      RegionRun run{.arena = memory,
                    .tokens = tokens,
                    .first_row = 0,
                    .rows = tokens,
                    .offsets = &impl.offsets,
                    .widths = &impl.widths,
                    .inputs = &in,
                    .outputs = &out,
                    .attends = &attends,
                    .threads = &kernels::ThreadPool::Default()};
      for (size_t s = 0; s < impl.stages.size(); ++s) {
        if (last && s == impl.tail) {
          run.first_row = tokens - 1;
          run.rows = 1;
        }
        impl.stages[s].run(run);
      }
    });
  }
  void eval_gpu(const std::vector<mx::array>& /*inputs*/, std::vector<mx::array>& /*outputs*/) override {
    throw Error(ErrorCode::kInternal, "a region of CPU kernels was asked to run on another device");
  }
  const char* name() const override { return "offgraph::Region"; }

 private:
  int CheckedArena() const {
    int64_t floats = 0;
    if (__builtin_mul_overflow(region_->arena_width(), tokens_, &floats) || floats > INT32_MAX) {
      throw Error(ErrorCode::kOutOfRange, "a step of " + std::to_string(tokens_) + " tokens needs more than " +
                                              std::to_string(INT32_MAX) + " intermediate values; split it");
    }
    return static_cast<int>(floats);
  }

  std::shared_ptr<const Region> region_;
  int64_t tokens_;
  std::vector<RegionAttend> attends_;
  bool last_row_only_;
};

Region::Region(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Region::~Region() = default;

int64_t Region::arena_width() const { return impl_->arena_width; }

std::vector<mx::array> Region::Run(const std::shared_ptr<const Region>& region, int64_t tokens,
                                   std::vector<mx::array> inputs, std::vector<RegionAttend> attends,
                                   bool last_row_only) {
  const auto rows = static_cast<mx::ShapeElem>(last_row_only ? 1 : tokens);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> types;
  for (const RegionOutput& output : region->impl_->outputs) {
    const auto dim = static_cast<mx::ShapeElem>(output.dim);
    mx::Shape shape{1, rows, dim};
    if (output.heads > 1) shape.insert(shape.begin() + 2, static_cast<mx::ShapeElem>(output.heads));
    shapes.push_back(std::move(shape));
    types.push_back(output.type);
  }
  auto primitive = std::make_shared<RegionPrimitive>(mx::default_stream(mx::Device::cpu), region, tokens,
                                                     std::move(attends), last_row_only);
  return mx::array::make_arrays(std::move(shapes), types, primitive, inputs);
}

}  // namespace offgraph::bytes
