// The backend that ExecuTorch's runtime knows as "MLXBackend". Exceptions stop here.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/log.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/delegate/cache_registry.h"
#include "offgraph/delegate/last_error.h"
#include "offgraph/delegate/step_memory.h"
#include "offgraph/delegate/values.h"
#include "offgraph/program/executor.h"
#include "offgraph/program/program.h"

namespace offgraph::delegate {
namespace {

namespace et = executorch::runtime;

constexpr const char* kBackendName = "MLXBackend";
constexpr const char* kCacheKey = "cache_key";

et::Error ToExecuTorch(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return et::Error::InvalidArgument;
    case ErrorCode::kOutOfRange:
      return et::Error::OutOfResources;
    case ErrorCode::kBadFile:
      return et::Error::InvalidProgram;
    case ErrorCode::kUnsupported:
      return et::Error::NotSupported;
    case ErrorCode::kOutOfMemory:
      return et::Error::MemoryAllocationFailed;
    case ErrorCode::kIo:
      return et::Error::AccessFailed;
    case ErrorCode::kCancelled:
      return et::Error::InvalidState;
    case ErrorCode::kInternal:
      return et::Error::Internal;
  }
  return et::Error::Internal;
}

// ExecuTorch's log cuts a message at 256 bytes: longer ones are written in pieces, cut between words.
void Log(const std::string& message) {
  constexpr size_t kPiece = 200;
  for (size_t begin = 0; begin < message.size();) {
    size_t end = std::min(begin + kPiece, message.size());
    const size_t space = message.rfind(' ', end);
    if (end < message.size() && space != std::string::npos && space > begin) end = space;
    const std::string piece = message.substr(begin, end - begin);
    ET_LOG(Error, "%s%s", begin == 0 ? "offgraph: " : "...", piece.c_str());
    begin = end;
  }
}

et::Error Report(et::Error code, const std::string& message) {
  SetLastError(message);
  Log(message);
  return code;
}

// Runs `call`; what it throws is reported, and becomes ExecuTorch's error.
template <typename Call>
et::Error Guard(const Call& call) noexcept {
  try {
    try {
      call();
      return et::Error::Ok;
    } catch (const Error& error) {
      return Report(ToExecuTorch(error.code()), error.what());
    } catch (const std::bad_alloc&) {
      return Report(et::Error::MemoryAllocationFailed, "out of memory");
    } catch (const std::exception& error) {
      return Report(et::Error::Internal, error.what());
    }
  } catch (...) {
    return et::Error::Internal;
  }
}

// A weight from the program's named data. ExecuTorch frees the bytes with their buffer, so the buffer is the owner.
program::WeightSource WeightsOf(const et::NamedDataMap* data) {
  return [data](std::string_view key) -> std::optional<program::WeightBytes> {
    if (data == nullptr) return std::nullopt;
    et::Result<et::FreeableBuffer> found = data->get_data(key);
    if (!found.ok()) return std::nullopt;
    const auto buffer = std::make_shared<et::FreeableBuffer>(std::move(found.get()));
    return program::WeightBytes{{static_cast<const std::byte*>(buffer->data()), buffer->size()}, buffer};
  };
}

// The runtime spec cache_key; empty where there is none.
std::string CacheKey(const et::BackendInitContext& context, const std::string& method) {
  const et::Result<const char*> spec = context.get_runtime_spec<const char*>(kCacheKey);
  if (spec.ok()) return spec.get();
  if (spec.error() == et::Error::NotFound) return {};
  throw Error(ErrorCode::kInvalidArgument, method + ": the runtime spec cache_key is no string");
}

// A delegated method, or part of one.
class Handle {
 public:
  Handle(const et::BackendInitContext& context, const et::FreeableBuffer& payload)
      : name_(std::string("method '") + (context.get_method_name() == nullptr ? "" : context.get_method_name()) + "'") {
    const auto* bytes = static_cast<const std::byte*>(payload.data());
    auto loaded = program::Program::Load({bytes, payload.size()}, WeightsOf(context.get_named_data_map()), name_);
    if (!loaded->cache_layers().empty()) {
      cache_ = CacheRegistry::Global().Acquire(CacheKey(context, name_), loaded->cache_layers(), name_);
    }
    executor_ = std::make_unique<program::Executor>(std::move(loaded), cache_.store,
                                                    program::ExecutorOptions{.memory_limit = StepMemoryLimit()});
  }

  // Inputs come first in `arguments`, then outputs.
  void Execute(et::Span<et::EValue*> arguments) {
    const size_t n_inputs = executor_->program().inputs().size();
    const size_t n_outputs = executor_->program().outputs().size();
    CheckArguments(arguments, n_inputs, n_outputs);
    std::vector<program::Argument> inputs;
    for (size_t i = 0; i < n_inputs; ++i) inputs.push_back(FromEValue(*arguments[i], Part("input", i)));
    program::RunOptions options;
    options.restart_at_zero = true;
    options.memory_limit = StepMemoryLimit();
    // Before the step is committed: where an output cannot take its result, the step did not happen.
    options.accept = [&](const std::vector<program::Argument>& outputs) {
      for (size_t i = 0; i < n_outputs; ++i) ToEValue(outputs[i], *arguments[n_inputs + i], Part("output", i));
    };
    Run(inputs, options);
  }

 private:
  std::string Part(const char* kind, size_t index) const { return name_ + ", " + kind + " " + std::to_string(index); }

  void CheckArguments(et::Span<et::EValue*> arguments, size_t n_inputs, size_t n_outputs) const {
    if (arguments.size() != n_inputs + n_outputs) {
      throw Error(ErrorCode::kBadFile, name_ + ": the delegate's payload has " + std::to_string(n_inputs) +
                                           " inputs and " + std::to_string(n_outputs) +
                                           " outputs, and the program calls it with " +
                                           std::to_string(arguments.size()) + " arguments");
    }
    if (std::any_of(arguments.begin(), arguments.end(), [](const et::EValue* value) { return value == nullptr; })) {
      throw Error(ErrorCode::kInvalidArgument, name_ + ": an argument is null");
    }
  }

  void Run(const std::vector<program::Argument>& inputs, const program::RunOptions& options) {
    if (cache_.group == nullptr) {
      executor_->Run(inputs, options);
      return;
    }
    const std::scoped_lock lock(cache_.group->mutex());
    cache_.group->CheckComplete();
    executor_->Run(inputs, options);
  }

  std::string name_;
  CacheLease cache_;  // empty where the method has no cache
  std::unique_ptr<program::Executor> executor_;
};

class MlxBackend final : public et::BackendInterface {
 public:
  bool is_available() const override { return true; }

  et::Result<et::DelegateHandle*> init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                       et::ArrayRef<et::CompileSpec> /*compile_specs*/) const override {
    et::DelegateHandle* handle = nullptr;
    const et::Error error = Guard([&] { handle = new Handle(context, *processed); });
    if (error != et::Error::Ok) return error;
    return handle;
  }

  et::Error execute(et::BackendExecutionContext& /*context*/, et::DelegateHandle* handle,
                    et::Span<et::EValue*> arguments) const override {
    return Guard([&] { static_cast<Handle*>(handle)->Execute(arguments); });
  }

  void destroy(et::DelegateHandle* handle) const override { delete static_cast<Handle*>(handle); }
};

// Loading the library registers the backend.
const bool kRegistered = [] {
  static MlxBackend backend;
  et::runtime_init();  // its log needs it, and a library may be loaded before anybody else called it
  const et::Error error = et::register_backend({kBackendName, &backend});
  if (error != et::Error::Ok) {
    Log(std::string("another library has registered the backend ") + kBackendName +
        " in this process; liboffgraph_executorch.so is not used");
  }
  return error == et::Error::Ok;
}();

}  // namespace
}  // namespace offgraph::delegate
