#include "offgraph/program/executor.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <utility>

#include "offgraph/bytes/evaluation.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/buffer_undo.h"
#include "offgraph/program/frame.h"
#include "offgraph/program/mlx_types.h"
#include "offgraph/program/program_impl.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

std::string Describe(const ValueInfo& info) {
  if (!info.is_tensor) return "a scalar of " + Name(info.type);
  std::string text = Name(info.type) + " [";
  for (size_t i = 0; i < info.shape.size(); ++i) {
    const DimInfo& dim = info.shape[i];
    text += i == 0 ? "" : ", ";
    text += dim.fixed() ? std::to_string(dim.min) : dim.max < 0 ? "any" : "up to " + std::to_string(dim.max);
  }
  return text + "]";
}

std::string Describe(const Argument& argument) {
  const auto* tensor = std::get_if<HostTensor>(&argument);
  return tensor != nullptr ? Name(tensor->type) + " " + ShapeText(tensor->shape) : "a scalar";
}

// The lower end of a range is no limit: the exporter writes 2 for axes that take 1 as well (torch.export guards the
// size 1 apart from the others).
bool Fits(const HostTensor& tensor, const ValueInfo& info) {
  if (tensor.type != info.type || tensor.shape.size() != info.shape.size()) return false;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const DimInfo& dim = info.shape[i];
    const int64_t size = tensor.shape[i];
    if (size < 0 || (dim.fixed() && size != dim.min) || (dim.max >= 0 && size > dim.max)) return false;
  }
  return true;
}

bool Fits(const Argument& argument, const ValueInfo& info) {
  if (const auto* tensor = std::get_if<HostTensor>(&argument)) return info.is_tensor && Fits(*tensor, info);
  if (info.is_tensor) return false;
  // An integer stands for a double or a bool too; nothing else is converted.
  return std::holds_alternative<int64_t>(argument) ||
         (std::holds_alternative<double>(argument) && info.type == ScalarType::kDouble) ||
         (std::holds_alternative<bool>(argument) && info.type == ScalarType::kBool);
}

void CheckArguments(const Program& program, std::span<const Argument> arguments) {
  const std::vector<ValueInfo>& inputs = program.inputs();
  if (arguments.size() != inputs.size()) {
    throw Error(ErrorCode::kInvalidArgument, program.name() + ": " + std::to_string(arguments.size()) +
                                                 " arguments; expected " + std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string part = program.name() + ": argument " + std::to_string(i);
    if (!Fits(arguments[i], inputs[i])) {
      throw Error(ErrorCode::kInvalidArgument,
                  part + " is " + Describe(arguments[i]) + "; expected " + Describe(inputs[i]));
    }
    const auto* tensor = std::get_if<HostTensor>(&arguments[i]);
    if (tensor == nullptr) continue;
    ToShape(tensor->shape, SizeOf(tensor->type), part);
    if (tensor->data == nullptr && tensor->shape.end() == std::find(tensor->shape.begin(), tensor->shape.end(), 0)) {
      throw Error(ErrorCode::kInvalidArgument, part + " has no data");
    }
  }
}

Value ToValue(const Argument& argument, SlotKind kind) {
  if (const auto* integer = std::get_if<int64_t>(&argument)) {
    if (kind == SlotKind::kFloat) return static_cast<double>(*integer);
    if (kind == SlotKind::kBool) return *integer != 0;
    return *integer;
  }
  if (const auto* number = std::get_if<double>(&argument)) return *number;
  return std::get<bool>(argument);
}

// Runs `work`; what it throws becomes an Error that begins with the program's name.
template <typename Work>
auto InProgram(const Program& program, const char* what, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.code(), program.name() + ": " + error.what());
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kOutOfMemory, program.name() + ": " + what + " could not be evaluated: " + error.what());
  }
}

bool SharesMemory(const mx::array& a, const mx::array& b) { return a.data_shared_ptr() == b.data_shared_ptr(); }

HostTensor CopyToHost(const mx::array& array) {
  const auto* data = array.data<std::byte>();  // null where the array is empty
  auto bytes = std::make_shared<std::vector<std::byte>>(data, data + array.nbytes());
  HostTensor tensor = ToHost(array);
  tensor.data = std::shared_ptr<const void>(bytes, bytes->data());
  return tensor;
}

// Whether an array's memory came from MLX and is used by nothing else.
bool OwnsItsMemory(const mx::array& array) {
  return array.data_shared_ptr().use_count() == 1 && array.data_shared_ptr()->is_owned();
}

// Opens the store's step at the first node that attends, and checks that the others agree.
class StoreStep : public CacheStep {
 public:
  StoreStep(bytes::KvStore* store, std::optional<std::vector<int64_t>> traced, bool restart_at_zero)
      : store_(store), traced_(std::move(traced)), restart_at_zero_(restart_at_zero) {}
  ~StoreStep() override {
    if (opened_) store_->Abandon();
  }
  StoreStep(const StoreStep&) = delete;
  StoreStep& operator=(const StoreStep&) = delete;

  bytes::KvStore& Open(const mx::array& position, int64_t tokens) override {
    if (opened_ && tokens == tokens_ && (traced_ || position.id() == position_id_)) return *store_;
    const int64_t first = CheckPosition(traced_ ? *traced_ : Evaluate(position), tokens);
    if (!opened_) {
      const cache::StepRequest request{0, first, tokens};
      if (first == 0 && restart_at_zero_) store_->Clear();
      store_->Begin({&request, 1});
      opened_ = true;
      first_ = first;
      tokens_ = tokens;
    } else if (first != first_ || tokens != tokens_) {
      throw Error(ErrorCode::kInvalidArgument, "a layer at position " + std::to_string(first) + " with " +
                                                   std::to_string(tokens) + " tokens; the step's other layers are at " +
                                                   std::to_string(first_) + " with " + std::to_string(tokens_));
    }
    position_id_ = position.id();
    return *store_;
  }

  bool fused() const override { return store_->fused(); }

  void Commit() {
    if (!std::exchange(opened_, false)) return;
    store_->Commit();
  }

 private:
  static std::vector<int64_t> Evaluate(const mx::array& position) {
    mx::array rows = mx::contiguous(position);
    mx::eval(rows);
    return HostIntegers(rows);
  }

  bytes::KvStore* store_;
  std::optional<std::vector<int64_t>> traced_;
  bool restart_at_zero_;
  bool opened_ = false;
  int64_t first_ = 0;
  int64_t tokens_ = 0;
  std::uintptr_t position_id_ = 0;
};

}  // namespace

struct Executor::Impl {
  std::shared_ptr<const Program> program;
  std::shared_ptr<bytes::KvStore> store;
  Frame frame;
  const ExecutorOptions limits;

  Impl(std::shared_ptr<const Program> p, std::shared_ptr<bytes::KvStore> s, const ExecutorOptions& o)
      : program(std::move(p)), store(std::move(s)), frame(graph(), *program->impl().interpreter), limits(o) {
    frame.weights = &parts().weights;
    frame.packed = &parts().packed;
    frame.fp32_results = parts().fp32_results;
  }

  const Program::Impl& parts() const { return program->impl(); }
  const Graph& graph() const { return parts().graph; }

  // Arrays of the slots [first, end).
  std::vector<mx::array> Slots(uint32_t first, uint32_t end) const {
    std::vector<mx::array> arrays;
    for (uint32_t i = first; i < end; ++i) arrays.push_back(frame.Get(Tid{i}));
    return arrays;
  }
  std::vector<mx::array> Constants() const { return Slots(0, graph().n_constants); }
  std::vector<mx::array> Buffers() const { return Slots(graph().first_buffer(), graph().first_temp()); }
  void SetSlots(uint32_t first, const std::vector<mx::array>& arrays) {
    for (uint32_t i = 0; i < arrays.size(); ++i) frame.Set(Tid{first + i}, arrays[i]);
  }

  // Mutable buffers and what the init chain makes.
  void Initialize();
  void MakeBuffers();
  void RunInitChain();
  void BindArguments(std::span<const Argument> arguments);
  void Reset();
  std::vector<Argument> Step(std::span<const Argument> arguments, const RunOptions& options);
  std::vector<Argument> Evaluate(std::span<const Argument> arguments, const RunOptions& options, BufferUndo* undo);
  std::vector<mx::array> CollectOutputs(bool last_row_only) const;
  std::vector<Argument> ToArguments(const std::vector<mx::array>& tensors, const std::vector<mx::array>& inputs) const;
  // Empties every slot that a step fills.
  void ClearStep() {
    for (uint32_t i = graph().first_input(); i < graph().first_buffer(); ++i) frame.Drop(Tid{i});
    for (uint32_t i = graph().first_temp(); i < graph().n_tensors(); ++i) frame.Drop(Tid{i});
    frame.DropValues();
    frame.cache = nullptr;
    frame.cancelled = nullptr;
    frame.probe = nullptr;
    frame.LimitMemory(0);
  }
};

void Executor::Impl::Initialize() {
  for (uint32_t i = 0; i < parts().constants.size(); ++i) frame.Set(Tid{i}, parts().constants[i]);
  MakeBuffers();
  if (graph().init_chain) RunInitChain();
}

// The file says how large they are and holds none of their bytes: all of them are counted before one is made. The sum
// was checked when the program was loaded.
void Executor::Impl::MakeBuffers() {
  std::vector<mx::Shape> shapes;
  int64_t total = 0;
  for (uint32_t i = graph().first_buffer(); i < graph().first_temp(); ++i) {
    const TensorMeta& meta = *graph().Meta(Tid{i});
    std::vector<int64_t> shape;
    int64_t bytes = SizeOf(meta.type);
    for (const TensorMeta::Dim& dim : meta.shape) shape.push_back(dim.min);
    for (int32_t dim : shapes.emplace_back(ToShape(shape, bytes, "mutable buffer"))) bytes *= dim;
    total += bytes;
  }
  CheckFitsMachine(total, "the mutable buffers");
  if (limits.memory_limit > 0 && total > limits.memory_limit) {
    throw Error(ErrorCode::kOutOfMemory, "the mutable buffers take " + std::to_string(total) +
                                             " bytes, and the limit is " + std::to_string(limits.memory_limit));
  }
  for (uint32_t i = 0; i < shapes.size(); ++i) {
    const Tid buffer{graph().first_buffer() + i};
    frame.Set(buffer, Zeros(shapes[i], ToMlx(graph().Meta(buffer)->type)));
  }
}

void Executor::Impl::RunInitChain() {
  // Init chains convert some constants; nobody can cancel one that goes on for ever.
  constexpr int64_t kMostInstructions = 1'000'000;
  int64_t instructions = 0;
  frame.LimitMemory(limits.memory_limit);
  frame.cancelled = [&instructions] { return ++instructions > kMostInstructions; };
  try {
    frame.interpreter().Run(*graph().init_chain, frame);
  } catch (...) {
    ClearStep();
    if (instructions <= kMostInstructions) throw;
    throw Error(ErrorCode::kBadFile,
                "the init chain runs more than " + std::to_string(kMostInstructions) + " instructions");
  }
  std::vector<mx::array> made = Constants();
  for (const mx::array& buffer : Buffers()) made.push_back(buffer);
  made.push_back(frame.random_state());
  ClearStep();
  mx::eval(made);
}

void Executor::Impl::Reset() {
  if (!graph().init_chain) {
    // In place where that is possible: they may be most of the memory that the process has.
    std::vector<mx::array> buffers = Buffers();
    for (mx::array& buffer : buffers) {
      if (!OwnsItsMemory(buffer)) buffer = Zeros(buffer.shape(), buffer.dtype());
    }
    for (mx::array& buffer : buffers) {
      std::fill_n(buffer.data<std::byte>(), buffer.data_size() * buffer.itemsize(), std::byte{0});
    }
    SetSlots(graph().first_buffer(), buffers);
    return;
  }
  const std::vector<mx::array> constants = Constants();
  const std::vector<mx::array> buffers = Buffers();
  const mx::array random = frame.random_state();
  try {
    Initialize();
  } catch (...) {
    bytes::WaitForEvaluation();
    SetSlots(0, constants);
    SetSlots(graph().first_buffer(), buffers);
    frame.set_random_state(random);
    ClearStep();
    throw;
  }
}

void Executor::Impl::BindArguments(std::span<const Argument> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Slot& slot = graph().inputs[i];
    if (slot.kind == SlotKind::kTensor) {
      frame.Set(Tid{slot.index}, FromHost(std::get<HostTensor>(arguments[i])));
    } else {
      frame.Set(Vid{slot.index}, ToValue(arguments[i], slot.kind));
    }
  }
}

// The output tensors, in their declared types and row-contiguous.
std::vector<mx::array> Executor::Impl::CollectOutputs(bool last_row_only) const {
  std::vector<mx::array> tensors;
  for (size_t i = 0; i < graph().outputs.size(); ++i) {
    if (graph().outputs[i].kind != SlotKind::kTensor) continue;
    mx::array output = frame.Get(Tid{graph().outputs[i].index});
    if (i == 0 && last_row_only && output.ndim() == 3 && output.shape(1) > 1) output = LastRow(output);
    output = mx::astype(output, ToMlx(parts().outputs[i].type));
    tensors.push_back(mx::contiguous(output));
  }
  return tensors;
}

std::vector<Argument> Executor::Impl::ToArguments(const std::vector<mx::array>& tensors,
                                                  const std::vector<mx::array>& inputs) const {
  const std::vector<mx::array> buffers = Buffers();
  std::vector<Argument> results;
  size_t next = 0;
  for (const Slot& slot : graph().outputs) {
    if (slot.kind != SlotKind::kTensor) {
      results.push_back(std::visit([](auto value) { return Argument(value); }, frame.Get(Vid{slot.index})));
      continue;
    }
    const mx::array& tensor = tensors[next++];
    bool shared = false;
    for (const mx::array& input : inputs) shared = shared || SharesMemory(tensor, input);
    for (const mx::array& buffer : buffers) shared = shared || SharesMemory(tensor, buffer);
    results.emplace_back(shared ? CopyToHost(tensor) : ToHost(tensor));
  }
  return results;
}

std::vector<Argument> Executor::Impl::Step(std::span<const Argument> arguments, const RunOptions& options) {
  std::optional<std::vector<int64_t>> position;
  if (parts().position) {
    position = ReadPosition(*parts().position, std::get<HostTensor>(arguments[parts().position->input]));
  }
  StoreStep step(store.get(), std::move(position), options.restart_at_zero);
  BufferUndo undo(Buffers());
  const mx::array random_before = frame.random_state();
  try {
    frame.cache = store != nullptr ? &step : nullptr;
    std::vector<Argument> results = Evaluate(arguments, options, &undo);
    if (options.accept) options.accept(results);
    step.Commit();
    ClearStep();
    return results;
  } catch (...) {
    bytes::WaitForEvaluation();
    for (uint32_t i = 0; i < graph().n_buffers; ++i) {
      const Tid buffer{graph().first_buffer() + i};
      frame.Set(buffer, undo.Restored(i, frame.Get(buffer)));
    }
    frame.set_random_state(random_before);
    ClearStep();
    throw;
  }
}

// Builds the step's graph and evaluates it.
std::vector<Argument> Executor::Impl::Evaluate(std::span<const Argument> arguments, const RunOptions& options,
                                               BufferUndo* undo) {
  BindArguments(arguments);
  std::vector<mx::array> inputs;
  for (const Slot& slot : graph().inputs) {
    if (slot.kind == SlotKind::kTensor) inputs.push_back(frame.Get(Tid{slot.index}));
  }
  frame.last_row_only = options.last_row_only;
  frame.cancelled = options.cancelled;
  frame.probe = options.probe;
  frame.LimitMemory(options.memory_limit);
  frame.interpreter().Run(graph().main_chain, frame);
  const std::vector<mx::array> outputs = CollectOutputs(options.last_row_only);
  // Scalars stay in their slots until they are read; tensors are let go, so that MLX can reuse their memory.
  frame.FinishCounting();
  for (uint32_t i = graph().first_temp(); i < graph().n_tensors(); ++i) frame.Drop(Tid{i});
  for (uint32_t i = graph().first_output(); i < graph().first_buffer(); ++i) frame.Drop(Tid{i});
  std::vector<mx::array> pending = Buffers();
  undo->AllowUpdatesInPlace(pending);
  pending.insert(pending.end(), outputs.begin(), outputs.end());
  pending.push_back(frame.random_state());
  mx::eval(std::move(pending));
  return ToArguments(outputs, inputs);
}

Executor::Executor(std::shared_ptr<const Program> program, std::shared_ptr<bytes::KvStore> store,
                   const ExecutorOptions& options) {
  if (program == nullptr) throw Error(ErrorCode::kInvalidArgument, "an executor needs a program");
  const std::vector<CacheLayerInfo>& layers = program->cache_layers();
  if (layers.empty()) {
    store.reset();
  } else if (store == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, program->name() + ": the program attends over a cache of " +
                                                 std::to_string(layers.back().layer_id + 1) +
                                                 " layers, and none was given");
  } else if (layers.back().layer_id >= store->sequences().n_layers()) {
    throw Error(ErrorCode::kInvalidArgument, program->name() + ": the program uses cache layer " +
                                                 std::to_string(layers.back().layer_id) + ", and the cache has " +
                                                 std::to_string(store->sequences().n_layers()) + " layers");
  }
  const MlxLock lock;
  impl_ = std::make_unique<Impl>(std::move(program), std::move(store), options);
  InProgram(*impl_->program, "the init chain", [&] { impl_->Initialize(); });
}

Executor::~Executor() {
  const std::lock_guard lock(MlxMutex());
  impl_.reset();
}

std::vector<Argument> Executor::Run(std::span<const Argument> arguments, const RunOptions& options) {
  CheckArguments(program(), arguments);
  const std::lock_guard lock(MlxMutex());
  return InProgram(*impl_->program, "the step", [&] { return impl_->Step(arguments, options); });
}

void Executor::Reset() {
  const std::lock_guard lock(MlxMutex());
  InProgram(*impl_->program, "the init chain", [&] { impl_->Reset(); });
}

const Program& Executor::program() const { return *impl_->program; }
bytes::KvStore* Executor::store() const { return impl_->store.get(); }

}  // namespace offgraph::program
