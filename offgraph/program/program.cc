#include "offgraph/program/program.h"

#include <mlx/device.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <map>
#include <set>

#include "offgraph/cache/error.h"
#include "offgraph/program/flow.h"
#include "offgraph/program/frame.h"
#include "offgraph/program/mlx_types.h"
#include "offgraph/program/passes.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/program_impl.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// Assembles a program from a graph and its weights; every throw names the program and the part.
class Loader {
 public:
  explicit Loader(Program::Impl* impl) : impl_(*impl), graph_(impl->graph) {}

  void Load(const WeightSource& weights, const LoadOptions& options) {
    CheckMaps();
    CheckFlow(graph_, impl_.name);
    // Bound as it came first: an op without a handler, or a field that no handler can take, is found before any pass
    // looks at it.
    impl_.interpreter = std::make_unique<Interpreter>(graph_, impl_.name);
    for (const Slot& slot : graph_.inputs) impl_.inputs.push_back(Declaration(slot, "input"));
    for (const Slot& slot : graph_.outputs) impl_.outputs.push_back(Declaration(slot, "output"));
    FindCacheLayers();
    impl_.position = TracePosition(graph_);
    WrapConstants(weights);
    if (!options.optimize) return;
    impl_.fp32_results = !options.exact || options.fp32_results;
    impl_.graph = Optimize(std::move(impl_.graph), options.exact);
    impl_.interpreter = std::make_unique<Interpreter>(graph_, impl_.name);
    ComputeConstants(options.lay_out);
  }

 private:
  [[noreturn]] void Fail(const std::string& part, const std::string& problem) const {
    throw Error(ErrorCode::kBadFile, impl_.name + ": " + part + ": " + problem);
  }

  // Inputs, outputs and buffers lie where the counts say.
  void CheckMaps() const {
    CheckRange(graph_.inputs, "input", graph_.first_input(), graph_.first_output());
    CheckRange(graph_.outputs, "output", graph_.first_output(), graph_.first_buffer());
    CheckRange(graph_.buffers, "mutable buffer", graph_.first_buffer(), graph_.first_temp());
    int64_t buffer_bytes = 0;
    for (uint32_t i = graph_.first_buffer(); i < graph_.first_temp(); ++i) {
      const std::string part = "mutable buffer in slot " + std::to_string(i);
      const TensorMeta* meta = graph_.Meta({i});
      if (meta == nullptr) Fail(part, "its type and shape are not declared");
      int64_t bytes = SizeOf(meta->type);
      for (int64_t dim : ToShape(StaticShape(*meta, part), bytes, impl_.name + ": " + part)) bytes *= dim;
      if (__builtin_add_overflow(buffer_bytes, bytes, &buffer_bytes)) {
        Fail(part, "all buffers together have more bytes than 64 bits can count");
      }
    }
  }
  void CheckRange(const std::vector<Slot>& slots, const char* kind, uint32_t begin, uint32_t end) const {
    std::set<uint32_t> seen;
    for (const Slot& slot : slots) {
      if (slot.kind != SlotKind::kTensor) continue;
      if (slot.index < begin || slot.index >= end) {
        Fail(kind, "tensor slot " + std::to_string(slot.index) + " is not among slots " + std::to_string(begin) +
                       " to " + std::to_string(end));
      }
      if (!seen.insert(slot.index).second) Fail(kind, "tensor slot " + std::to_string(slot.index) + " is named twice");
    }
  }

  ValueInfo Declaration(const Slot& slot, const std::string& kind) const {
    ValueInfo info;
    info.is_tensor = slot.kind == SlotKind::kTensor;
    if (!info.is_tensor) {
      info.type = slot.kind == SlotKind::kInt     ? ScalarType::kLong
                  : slot.kind == SlotKind::kFloat ? ScalarType::kDouble
                                                  : ScalarType::kBool;
      return info;
    }
    const TensorMeta* meta = graph_.Meta({slot.index});
    if (meta == nullptr) Fail(kind + " in slot " + std::to_string(slot.index), "its type and shape are not declared");
    info.type = meta->type;
    for (const TensorMeta::Dim& dim : meta->shape) info.shape.push_back({dim.min, dim.max});
    return info;
  }

  std::vector<int64_t> StaticShape(const TensorMeta& meta, const std::string& part) const {
    std::vector<int64_t> shape;
    for (const TensorMeta::Dim& dim : meta.shape) {
      if (dim.min != dim.max)
        Fail(part, "dimension " + std::to_string(shape.size()) + " is " + std::to_string(dim.min) + " to " +
                       (dim.max < 0 ? "any" : std::to_string(dim.max)) + ", expected one number");
      shape.push_back(dim.min);
    }
    return shape;
  }

  void FindCacheLayers() {
    std::map<int64_t, int64_t> nodes;
    for (size_t c = 0; c < graph_.chains.size(); ++c) {
      for (size_t i = 0; i < graph_.chains[c].size(); ++i) {
        const Instruction& instruction = graph_.chains[c][i];
        if (instruction.op == "UpdateAndAttendNode")
          ++nodes[std::get<int64_t>(FindField(instruction, "layer_id")->value)];
        if (instruction.op == "ScanNode") RefuseCacheIn(ChainsOf(instruction), Place(graph_, c, i));
      }
    }
    for (const auto& [layer, count] : nodes) impl_.cache_layers.push_back({layer, count});
  }

  // A scan would store one step's rows again for every position that it scans.
  void RefuseCacheIn(const std::vector<int64_t>& chains, const std::string& where) {
    for (int64_t chain : chains) {
      if (Attends(static_cast<size_t>(chain))) {
        throw Error(ErrorCode::kUnsupported, impl_.name + ": " + where + ": UpdateAndAttendNode inside of a scan");
      }
    }
  }

  // Whether a chain, or one that it calls, uses the cache. Each chain is looked at once.
  bool Attends(size_t chain) {
    if (attends_.empty()) attends_.resize(graph_.chains.size());
    if (attends_[chain]) return *attends_[chain];
    bool attends = false;
    for (const Instruction& instruction : graph_.chains[chain]) {
      attends = attends || instruction.op == "UpdateAndAttendNode";
      for (int64_t called : ChainsOf(instruction)) attends = Attends(static_cast<size_t>(called)) || attends;
    }
    attends_[chain] = attends;
    return attends;
  }

  void WrapConstants(const WeightSource& weights) {
    std::vector<const std::string*> names(graph_.n_constants, nullptr);
    for (const NamedSlot& named : graph_.names) {
      if (named.slot.kind == SlotKind::kTensor && named.slot.index < graph_.n_constants) {
        names[named.slot.index] = &named.name;
      }
    }
    for (uint32_t i = 0; i < graph_.n_constants; ++i) {
      const std::string slot = "constant in slot " + std::to_string(i);
      if (names[i] == nullptr) Fail(slot, "it has no name, by which its bytes are found in the file");
      const TensorMeta* meta = graph_.Meta({i});
      const std::string part = "weight \"" + *names[i] + "\"";
      if (meta == nullptr) Fail(part, "its type and shape are not declared");
      impl_.weights.emplace_back();
      impl_.constants.push_back(WrapConstant(*names[i], *meta, part, weights));
    }
  }

  // Constants that follow from others, and weights in the layout of the kernels.
  void ComputeConstants(bool lay_out) {
    Frame frame(graph_, *impl_.interpreter);
    frame.weights = &impl_.weights;
    frame.fp32_results = impl_.fp32_results;
    for (uint32_t i = 0; i < impl_.constants.size(); ++i) frame.Set(Tid{i}, impl_.constants[i]);
    if (graph_.fold_chain) {
      impl_.interpreter->Run(*graph_.fold_chain, frame);
      impl_.constants.clear();
      for (uint32_t i = 0; i < graph_.n_constants; ++i) impl_.constants.push_back(frame.Get(Tid{i}));
      mx::eval(impl_.constants);
    }
    if (!lay_out || mx::default_device() != mx::Device::cpu) return;
    for (const Instruction& instruction : graph_.chains[graph_.main_chain]) {
      if (instruction.op != "Region") continue;
      const int64_t body = std::get<int64_t>(FindField(instruction, "body_chain_idx")->value);
      LayOutLayers(graph_, graph_.chains[static_cast<size_t>(body)], frame, &impl_.packed);
    }
  }

  mx::array WrapConstant(const std::string& key, const TensorMeta& meta, const std::string& part,
                         const WeightSource& weights) {
    const std::vector<int64_t> shape = StaticShape(meta, part);
    int64_t bytes = SizeOf(meta.type);
    for (int64_t dim : ToShape(shape, SizeOf(meta.type), impl_.name + ": " + part)) bytes *= dim;
    if (bytes == 0) return Zeros(ToShape(shape, 1, part), ToMlx(meta.type));
    const std::optional<WeightBytes> found = weights(key);
    if (!found) Fail(part, "the file does not hold it");
    if (static_cast<int64_t>(found->bytes.size()) != bytes) {
      Fail(part, Name(meta.type) + " " + ShapeText(shape) + " has " + std::to_string(bytes) +
                     " bytes, and the file holds " + std::to_string(found->bytes.size()));
    }
    HostTensor tensor{meta.type, shape, std::shared_ptr<const void>(found->owner, found->bytes.data())};
    if (reinterpret_cast<uintptr_t>(found->bytes.data()) % static_cast<size_t>(SizeOf(meta.type)) != 0) {
      // Elements that straddle their alignment cannot be read in place.
      auto copy = std::make_shared<std::vector<std::byte>>(found->bytes.begin(), found->bytes.end());
      tensor.data = std::shared_ptr<const void>(copy, copy->data());
    } else {
      impl_.weights.back() = *found;
    }
    return Borrow(tensor);
  }

  Program::Impl& impl_;
  const Graph& graph_;
  std::vector<std::optional<bool>> attends_;  // by chain, where it was asked
};

}  // namespace

std::mutex& MlxMutex() {
  static std::mutex mutex;
  return mutex;
}

Program::Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Program::~Program() = default;

std::shared_ptr<const Program> Program::Load(std::span<const std::byte> payload, const WeightSource& weights,
                                             const std::string& name, const LoadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->graph = ReadPayload(payload, name);
  try {
    const MlxLock lock;
    Loader(impl.get()).Load(weights, options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kOutOfMemory, name + ": the program could not be loaded: " + error.what());
  }
  return std::shared_ptr<const Program>(new Program(std::move(impl)));
}

const std::string& Program::name() const { return impl_->name; }
const std::vector<ValueInfo>& Program::inputs() const { return impl_->inputs; }
const std::vector<ValueInfo>& Program::outputs() const { return impl_->outputs; }
const std::vector<CacheLayerInfo>& Program::cache_layers() const { return impl_->cache_layers; }

}  // namespace offgraph::program
