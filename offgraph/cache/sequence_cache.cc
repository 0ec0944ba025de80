#include "offgraph/cache/sequence_cache.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/cache/layout.h"

namespace offgraph::cache {
namespace {

[[noreturn]] void RefuseArgument(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }
[[noreturn]] void RefuseRange(const std::string& message) { throw Error(ErrorCode::kOutOfRange, message); }

void CheckAtLeast(const char* field, int64_t value, int64_t least) {
  if (value < least) {
    RefuseArgument("cache config: " + std::string(field) + " is " + std::to_string(value) + "; expected at least " +
                   std::to_string(least));
  }
}

void CheckConfig(const CacheConfig& config) {
  CheckAtLeast("capacity", config.capacity, 1);
  CheckAtLeast("n_layers", config.n_layers, 1);
  if (config.n_layers > kMaxLayers) {
    RefuseArgument("cache config: n_layers is " + std::to_string(config.n_layers) + "; expected at most " +
                   std::to_string(kMaxLayers));
  }
  CheckAtLeast("max_step", config.max_step, 1);
  CheckAtLeast("rewind_reserve", config.rewind_reserve, 0);
  const auto entries = static_cast<int64_t>(config.layers.size());
  if (entries != 1 && entries != config.n_layers) {
    RefuseArgument("cache config: layers has " + std::to_string(entries) +
                   " entries; expected 1, for all layers, or n_layers, " + std::to_string(config.n_layers) +
                   "; an entry says how far back a layer looks (window 0: full attention)");
  }
}

std::string NameStep(const StepRequest& request) {
  return "step of " + std::to_string(request.tokens) + " tokens at position " + std::to_string(request.position) +
         " of sequence " + std::to_string(request.sequence);
}

// What can be said of the requests without looking at any sequence. Returns the tokens of all of them.
int64_t CheckRequests(std::span<const StepRequest> requests) {
  if (requests.empty()) RefuseArgument("step: expected at least one sequence, got none");
  int64_t tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    if (request.tokens <= 0) RefuseArgument(NameStep(request) + ": expected at least 1 token");
    int64_t end = 0;
    if (__builtin_add_overflow(request.position, request.tokens, &end) ||
        __builtin_add_overflow(tokens, request.tokens, &tokens)) {
      RefuseArgument(NameStep(request) + ": position + tokens, or the tokens of the whole step, overflow");
    }
    for (const StepRequest& earlier : requests.first(i)) {
      if (earlier.sequence == request.sequence) {
        RefuseArgument(NameStep(request) + ": expected each sequence at most once in a step, got it twice");
      }
    }
  }
  return tokens;
}

// Layers of one configuration, which share a layout and, in each step, a plan.
struct LayerGroup {
  LayoutPolicy layout;
  int64_t first_layer = 0;  // stands for the group in messages

  std::string Name() const {
    std::string name = "layer " + std::to_string(first_layer) + " (window " + std::to_string(layout.window());
    if (layout.sinks() > 0) name += ", sinks " + std::to_string(layout.sinks());
    return name + ")";
  }
};

struct Sequence {
  int64_t length = 0;
  std::vector<int64_t> kept_from;  // one per layer group: see LayoutPolicy
};

}  // namespace

struct SequenceCache::Impl {
  CacheConfig config;
  std::vector<LayerGroup> groups;
  std::shared_ptr<const std::vector<int32_t>> group_of_layer;
  std::vector<Sequence> sequences;       // by id
  std::shared_ptr<const StepPlan> open;  // the open step; its segments say what Commit does

  explicit Impl(const CacheConfig& wanted);

  // Index into `sequences`. Throws where there is none.
  size_t IndexOf(SequenceId id) const;
  const Sequence& Find(SequenceId id) const { return sequences[IndexOf(id)]; }
  Sequence& Find(SequenceId id) { return sequences[IndexOf(id)]; }
  // The group that admits the shortest step.
  const LayerGroup& Tightest() const;
  void CheckStep(const StepRequest& request) const;
  int64_t RewindBound(const Sequence& sequence) const;
  void CheckRewind(const Sequence& sequence, SequenceId id, int64_t length) const;
};

SequenceCache::Impl::Impl(const CacheConfig& wanted) : config(wanted) {
  CheckConfig(config);
  std::map<std::pair<int64_t, int64_t>, int32_t> known;
  std::vector<int32_t> group_of_entry;
  for (size_t entry = 0; entry < config.layers.size(); ++entry) {
    const LayerConfig& layer = config.layers[entry];
    const auto [found, is_new] = known.try_emplace({layer.window, layer.sinks}, static_cast<int32_t>(groups.size()));
    if (is_new) {
      groups.push_back({.layout = LayoutPolicy(config, entry), .first_layer = static_cast<int64_t>(entry)});
    }
    group_of_entry.push_back(found->second);
  }
  if (group_of_entry.size() == 1) group_of_entry.resize(static_cast<size_t>(config.n_layers), 0);
  group_of_layer = std::make_shared<const std::vector<int32_t>>(std::move(group_of_entry));
  sequences.push_back({.length = 0, .kept_from = std::vector<int64_t>(groups.size(), 0)});
}

size_t SequenceCache::Impl::IndexOf(SequenceId id) const {
  if (id < 0 || id >= static_cast<SequenceId>(sequences.size())) {
    RefuseArgument("sequence " + std::to_string(id) + " does not exist; expected one from 0 to " +
                   std::to_string(sequences.size() - 1));
  }
  return static_cast<size_t>(id);
}

const LayerGroup& SequenceCache::Impl::Tightest() const {
  return *std::min_element(groups.begin(), groups.end(), [](const LayerGroup& a, const LayerGroup& b) {
    return a.layout.largest_step() < b.layout.largest_step();
  });
}

void SequenceCache::Impl::CheckStep(const StepRequest& request) const {
  const int64_t length = Find(request.sequence).length;
  if (request.position > length) {
    RefuseArgument(NameStep(request) + ": expected position " + std::to_string(length) + ", its length; got " +
                   std::to_string(request.position) + ", which leaves a gap of " +
                   std::to_string(request.position - length) + " positions");
  }
  if (request.position < length) {
    RefuseArgument(NameStep(request) + ": expected position " + std::to_string(length) + ", its length; got " +
                   std::to_string(request.position) + ", which is behind it (rewind first to go on from there)");
  }
  const int64_t left = config.capacity - length;
  if (request.tokens > left) {
    RefuseRange(NameStep(request) + ": expected at most " + std::to_string(left) +
                " tokens, which is what the capacity of " + std::to_string(config.capacity) + " leaves");
  }
  const LayerGroup& tightest = Tightest();
  if (request.tokens > tightest.layout.largest_step()) {
    RefuseRange(NameStep(request) + ": expected at most " + std::to_string(tightest.layout.largest_step()) +
                " tokens, the max_step of the ring of " + tightest.Name() + "; make it several steps");
  }
}

int64_t SequenceCache::Impl::RewindBound(const Sequence& sequence) const {
  int64_t bound = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    bound = std::max(bound, groups[i].layout.RewindBound(sequence.kept_from[i]));
  }
  return bound;
}

void SequenceCache::Impl::CheckRewind(const Sequence& sequence, SequenceId id, int64_t length) const {
  // Made only where it is needed: an accepted rewind takes no memory, and so cannot fail.
  const auto rewind = [&] { return "rewind of sequence " + std::to_string(id) + " to " + std::to_string(length); };
  if (open) RefuseArgument(rewind() + ": a step is open; commit or abandon it first");
  if (length < 0 || length > sequence.length) {
    RefuseArgument(rewind() + ": expected a length from 0 to " + std::to_string(sequence.length) + ", its length now");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const LayoutPolicy& layout = groups[i].layout;
    if (layout.CanGoOnAt(length, sequence.kept_from[i])) continue;
    RefuseRange(rewind() + ": expected at least " + std::to_string(RewindBound(sequence)) + ", or 0; " +
                groups[i].Name() + " would need positions from " + std::to_string(layout.FirstNeeded(length)) +
                " on, and its ring of " + std::to_string(layout.ring_rows()) + " rows was overwritten up to " +
                std::to_string(sequence.kept_from[i] - 1) + " (a larger rewind_reserve keeps more)");
  }
}

SequenceCache::SequenceCache(const CacheConfig& config) : impl_(std::make_unique<Impl>(config)) {}
SequenceCache::~SequenceCache() = default;

const CacheConfig& SequenceCache::config() const { return impl_->config; }
int64_t SequenceCache::n_layers() const { return impl_->config.n_layers; }
int64_t SequenceCache::length(SequenceId sequence) const { return impl_->Find(sequence).length; }
bool SequenceCache::step_open() const { return impl_->open != nullptr; }

std::shared_ptr<const StepPlan> SequenceCache::Begin(std::span<const StepRequest> requests) {
  if (impl_->open) {
    RefuseArgument("step: a step of " + std::to_string(impl_->open->tokens()) +
                   " tokens is open; commit or abandon it first");
  }
  const int64_t tokens = CheckRequests(requests);
  for (const StepRequest& request : requests) impl_->CheckStep(request);

  std::vector<LayerPlan> plans(impl_->groups.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayoutPolicy& layout = impl_->groups[i].layout;
    plans[i].window = layout.window();
    plans[i].sinks = layout.sinks();
    plans[i].segments.reserve(requests.size());
    int64_t token_offset = 0;
    for (const StepRequest& request : requests) {
      layout.AddSegment(request.sequence, token_offset, request.position, request.tokens, plans[i]);
      token_offset += request.tokens;
    }
  }
  auto plan = std::make_shared<const StepPlan>(std::move(plans), impl_->group_of_layer, tokens);

  // Nothing below throws. From here on the step's rows may be written at any time.
  for (const StepRequest& request : requests) {
    std::vector<int64_t>& kept_from = impl_->Find(request.sequence).kept_from;
    for (size_t i = 0; i < kept_from.size(); ++i) {
      kept_from[i] = impl_->groups[i].layout.KeptFrom(kept_from[i], request.position + request.tokens);
    }
  }
  impl_->open = plan;
  return plan;
}

void SequenceCache::Commit() {
  if (!impl_->open) RefuseArgument("commit: no step is open; begin one first");
  for (const SegmentPlan& segment : impl_->open->layer(0).segments) {
    impl_->Find(segment.sequence).length = segment.position + segment.tokens;
  }
  impl_->open = nullptr;
}

void SequenceCache::Abandon() noexcept { impl_->open = nullptr; }

int64_t SequenceCache::RewindBound(SequenceId sequence) const { return impl_->RewindBound(impl_->Find(sequence)); }

void SequenceCache::Rewind(int64_t length, SequenceId sequence) {
  Sequence& rewound = impl_->Find(sequence);
  impl_->CheckRewind(rewound, sequence, length);
  rewound.length = length;
  // Below kept_from a rewind is accepted only where nothing of the ring is needed: what lies there counts from anew.
  for (int64_t& kept_from : rewound.kept_from) kept_from = std::min(kept_from, length);
}

void SequenceCache::Clear(SequenceId sequence) { Rewind(0, sequence); }

int64_t SequenceCache::LargestStep(SequenceId sequence) const {
  const int64_t left = impl_->config.capacity - impl_->Find(sequence).length;
  return step_open() ? 0 : std::min(left, impl_->Tightest().layout.largest_step());
}

int64_t SequenceCache::MaxRows(int64_t layer) const {
  if (layer < 0 || layer >= n_layers()) {
    RefuseArgument("layer " + std::to_string(layer) + " does not exist; expected one from 0 to " +
                   std::to_string(n_layers() - 1));
  }
  const int32_t group = (*impl_->group_of_layer)[static_cast<size_t>(layer)];
  return impl_->groups[static_cast<size_t>(group)].layout.rows();
}

}  // namespace offgraph::cache
