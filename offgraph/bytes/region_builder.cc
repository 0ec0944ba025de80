#include <algorithm>
#include <memory>
#include <utility>

#include "offgraph/bytes/region_impl.h"

namespace offgraph::bytes {
namespace {

using kernels::Block;

RegionValue NewValue(Region::Impl& impl, int64_t heads, int64_t dim) {
  impl.places.push_back({.width = heads * dim});
  return {impl.places.size() - 1, 0, heads, dim, dim};
}

// The integers of an index input as the kernels want them.
std::vector<int64_t> IndicesOf(const mlx::core::array& array, int64_t first, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    indices[static_cast<size_t>(i)] =
        array.itemsize() == 8 ? array.data<int64_t>()[first + i] : array.data<int32_t>()[first + i];
  }
  return indices;
}

kernels::HeadsView ViewOf(const Block& block) {
  return {block.data, kernels::DType::kFloat32, block.head_stride, block.row_stride};
}

}  // namespace

RegionBuilder::RegionBuilder() : impl_(std::make_unique<Region::Impl>()) {}
RegionBuilder::~RegionBuilder() = default;

RegionValue RegionBuilder::Load(size_t input, int64_t heads, int64_t dim) {
  const RegionValue out = NewValue(*impl_, heads, dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             const mlx::core::array& array = (*run.inputs)[input];
                             const auto row_bytes = static_cast<size_t>(out.width()) * array.itemsize();
                             kernels::LoadRows(run.rows,
                                               array.data<uint8_t>() + static_cast<size_t>(run.first_row) * row_bytes,
                                               ToKernelType(array.dtype()), run.BlockOf(out), *run.threads);
                           },
                           {},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Embed(size_t input, int64_t dim, RegionLookup lookup) {
  const RegionValue out = NewValue(*impl_, 1, dim);
  impl_->stages.push_back({[=, lookup = std::move(lookup)](const RegionRun& run) {
                             const auto indices = IndicesOf((*run.inputs)[input], run.first_row, run.rows);
                             lookup(run.rows, indices.data(), run.BlockOf(out), *run.threads);
                           },
                           {},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Norm(const RegionValue& x, bool center, std::vector<float> weight, std::vector<float> bias,
                                float eps, kernels::DType round) {
  const RegionValue out = NewValue(*impl_, x.heads, x.dim);
  impl_->stages.push_back(
      {[=, weight = std::move(weight), bias = std::move(bias)](const RegionRun& run) {
         const float* w = weight.empty() ? nullptr : weight.data();
         const float* b = bias.empty() ? nullptr : bias.data();
         if (center) {
           kernels::LayerNorm(run.rows, run.BlockOf(x), w, b, eps, round, run.BlockOf(out), *run.threads);
         } else {
           kernels::RmsNorm(run.rows, run.BlockOf(x), w, eps, round, run.BlockOf(out), *run.threads);
         }
       },
       {x.buffer},
       {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Rotary(const RegionValue& x, const RegionValue& cos, const RegionValue& sin,
                                  kernels::DType round) {
  const RegionValue out = NewValue(*impl_, x.heads, x.dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             kernels::Rotary(run.rows, run.BlockOf(x), run.BlockOf(cos).data, run.BlockOf(sin).data,
                                             round, run.BlockOf(out), *run.threads);
                           },
                           {x.buffer, cos.buffer, sin.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Activate(const RegionValue& x, kernels::Activation activation, kernels::DType round) {
  const RegionValue out = NewValue(*impl_, x.heads, x.dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             kernels::Activate(run.rows, activation, run.BlockOf(x), round, run.BlockOf(out),
                                               *run.threads);
                           },
                           {x.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Gate(const RegionValue& gate, const RegionValue& up, kernels::Activation activation,
                                kernels::DType round) {
  const RegionValue out = NewValue(*impl_, gate.heads, gate.dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             kernels::Gate(run.rows, activation, run.BlockOf(gate), run.BlockOf(up), round,
                                           run.BlockOf(out), *run.threads);
                           },
                           {gate.buffer, up.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Combine(const RegionValue& a, const RegionValue& b, kernels::Arithmetic op,
                                   kernels::DType round) {
  const RegionValue out = NewValue(*impl_, a.heads, a.dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             kernels::Combine(run.rows, op, run.BlockOf(a), run.BlockOf(b), round, run.BlockOf(out),
                                              *run.threads);
                           },
                           {a.buffer, b.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::CombineConstant(const RegionValue& a, std::vector<float> constant, bool constant_first,
                                           kernels::Arithmetic op, kernels::DType round) {
  const RegionValue out = NewValue(*impl_, a.heads, a.dim);
  const auto shared = std::make_shared<std::vector<float>>(std::move(constant));
  impl_->stages.push_back({[=](const RegionRun& run) {
                             const Block value = run.BlockOf(a);
                             const Block fixed{shared->data(), 0, value.heads, 0, value.dim};
                             kernels::Combine(run.rows, op, constant_first ? fixed : value,
                                              constant_first ? value : fixed, round, run.BlockOf(out), *run.threads);
                           },
                           {a.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Concatenate(const std::vector<RegionValue>& parts) {
  int64_t dim = 0;
  std::vector<size_t> reads;
  for (const RegionValue& part : parts) {
    dim += part.dim;
    reads.push_back(part.buffer);
  }
  const RegionValue out = NewValue(*impl_, parts.front().heads, dim);
  impl_->stages.push_back({[=](const RegionRun& run) {
                             Block to = run.BlockOf(out);
                             for (const RegionValue& part : parts) {
                               to.dim = part.dim;
                               kernels::Activate(run.rows, kernels::Activation::kCopy, run.BlockOf(part),
                                                 kernels::DType::kFloat32, to, *run.threads);
                               to.data += part.dim;
                             }
                           },
                           std::move(reads),
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Linear(const RegionValue& x, int64_t width, RegionLinear linear) {
  const RegionValue out = NewValue(*impl_, 1, width);
  impl_->stages.push_back({[=, linear = std::move(linear)](const RegionRun& run) {
                             linear(run.rows, run.BlockOf(x), run.BlockOf(out), *run.threads);
                           },
                           {x.buffer},
                           {out.buffer}});
  return out;
}

RegionValue RegionBuilder::Attend(const RegionValue& q, const RegionValue& k, const RegionValue& v,
                                  kernels::DType round) {
  const RegionValue out = NewValue(*impl_, q.heads, v.dim);
  const size_t index = impl_->n_attends++;
  impl_->stages.push_back({[=](const RegionRun& run) {
                             const Block to = run.BlockOf(out);
                             (*run.attends)[index](
                                 ViewOf(run.BlockOf(q)), ViewOf(run.BlockOf(k)), ViewOf(run.BlockOf(v)),
                                 {to.data, kernels::DType::kFloat32, to.head_stride, to.row_stride, round});
                           },
                           {q.buffer, k.buffer, v.buffer},
                           {out.buffer},
                           true});
  return out;
}

void RegionBuilder::Save(const RegionValue& x, mlx::core::Dtype type) {
  const size_t output = impl_->outputs.size();
  impl_->outputs.push_back({type, x.heads, x.dim});
  impl_->stages.push_back({[=](const RegionRun& run) {
                             mlx::core::array& array = (*run.outputs)[output];
                             const auto row_bytes = static_cast<int64_t>(x.width() * static_cast<int64_t>(type.size()));
                             kernels::SaveRows(run.rows, run.BlockOf(x),
                                               array.data<uint8_t>() + run.output_row * row_bytes, ToKernelType(type),
                                               *run.threads);
                           },
                           {x.buffer},
                           {}});
}

std::shared_ptr<const Region> RegionBuilder::Build() {
  impl_->Finish();
  return std::make_shared<const Region>(std::move(impl_));
}

namespace {

// The segments in which a buffer is used.
struct Life {
  size_t first_stage = SIZE_MAX;
  size_t last_stage = 0;
  size_t first_segment = SIZE_MAX;
  size_t last_segment = 0;
};

std::vector<RegionSegment> CutIntoSegments(const std::vector<RegionStage>& stages) {
  std::vector<RegionSegment> segments;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (segments.empty() || stages[s].needs_all_rows || segments.back().needs_all_rows) {
      segments.push_back({.begin = s, .end = s, .needs_all_rows = stages[s].needs_all_rows});
    }
    segments.back().end = s + 1;
  }
  return segments;
}

std::vector<Life> FindLives(const Region::Impl& impl) {
  std::vector<Life> lives(impl.places.size());
  for (size_t segment = 0; segment < impl.segments.size(); ++segment) {
    for (size_t s = impl.segments[segment].begin; s < impl.segments[segment].end; ++s) {
      for (const std::vector<size_t>* uses : {&impl.stages[s].reads, &impl.stages[s].writes}) {
        for (const size_t buffer : *uses) {
          Life& life = lives[buffer];
          life.first_stage = std::min(life.first_stage, s);
          life.last_stage = std::max(life.last_stage, s);
          life.first_segment = std::min(life.first_segment, segment);
          life.last_segment = std::max(life.last_segment, segment);
        }
      }
    }
  }
  return lives;
}

}  // namespace

// First fit over the lives of the buffers, from the stage that writes one to the last that reads it. A stage's result
// never lies on its operands: their lives meet in that stage. Tiles of a segment are at different stages at the same
// time, so that what lies in the arena lives for whole segments.
void Region::Impl::Finish() {
  segments = CutIntoSegments(stages);
  tail = segments.size();
  while (tail > 0 && !segments[tail - 1].needs_all_rows) --tail;
  const std::vector<Life> lives = FindLives(*this);
  const auto meet = [](const Life& a, const Life& b, bool of_tile) {
    if (of_tile) return a.first_stage <= b.last_stage && b.first_stage <= a.last_stage;
    return a.first_segment <= b.last_segment && b.first_segment <= a.last_segment;
  };
  for (size_t b = 0; b < places.size(); ++b) {
    RegionPlace& place = places[b];
    place.of_tile = lives[b].first_segment == lives[b].last_segment && !segments[lives[b].first_segment].needs_all_rows;
    std::vector<std::pair<int64_t, int64_t>> taken;  // offset and end of earlier buffers alive at the same time
    for (size_t other = 0; other < b; ++other) {
      if (places[other].of_tile == place.of_tile && meet(lives[other], lives[b], place.of_tile)) {
        taken.emplace_back(places[other].offset, places[other].offset + places[other].width);
      }
    }
    std::sort(taken.begin(), taken.end());
    for (const auto& [begin, end] : taken) {
      if (place.offset + place.width <= begin) break;
      place.offset = std::max(place.offset, end);
    }
    int64_t& width = place.of_tile ? tile_width : arena_width;
    width = std::max(width, place.offset + place.width);
  }
}

}  // namespace offgraph::bytes
