// Container: an ExecuTorch program file (.pte), read without the ExecuTorch runtime.
//
// The format is ExecuTorch's schema/program.fbs (FlatBuffers, identifier ET12), with an extended header that places
// segments behind the FlatBuffer. The file is memory-mapped: spans point into the mapping, and live as long as the
// container does. Everything is checked at Open; accessors never fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace offgraph::pte {

struct DelegateInfo {
  std::string id;                        // "MLXBackend", "XnnpackBackend", ...
  std::span<const std::byte> processed;  // the payload
};

// A constant of a constant method: one value, a list, or the numbers of a tensor.
using ConstantValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>>;

struct MethodInfo {
  std::string name;
  std::vector<DelegateInfo> delegates;
  int64_t n_inputs = 0;
  int64_t n_outputs = 0;
  int64_t kernel_calls = 0;    // instructions that need ExecuTorch's own kernels
  int64_t delegate_calls = 0;  // instructions that call a delegate
  // Set where the method's output are constants: it has no input and no instruction (get_max_ctx_len and the like).
  std::optional<std::vector<ConstantValue>> constants;
  // Set where the method is one call of one delegate whose arguments are the method's inputs and outputs, in order:
  // the index into `delegates`.
  std::optional<size_t> whole_delegate;
};

class Container {
 public:
  // Maps and verifies. Throws Error(kIo) where the file cannot be read, Error(kBadFile) where it is something else.
  static std::shared_ptr<const Container> Open(const std::string& path);
  // The same for bytes in memory, which must stay valid; `name` is for messages.
  static std::shared_ptr<const Container> Parse(std::span<const std::byte> bytes, const std::string& name);
  ~Container();

  const std::string& name() const;
  size_t size() const;  // bytes of the file
  const std::vector<MethodInfo>& methods() const;
  // Null where there is none of that name.
  const MethodInfo* FindMethod(std::string_view name) const;
  // Named data (weights); absent where there is none of that name.
  std::optional<std::span<const std::byte>> FindData(std::string_view key) const;
  std::vector<std::string> DataKeys() const;
  // Gives back the memory of named data that will hardly be read again; reading them maps the file's pages anew.
  // REQUIRES: `data` came from FindData. Does nothing for a container in somebody else's memory.
  void Evict(std::span<const std::byte> data) const;
  // Copies a part of named data, without leaving pages of the file in memory as reading them in place does.
  // REQUIRES: `part` lies in what came from FindData, and `to` has room.
  void Read(std::span<const std::byte> part, std::byte* to) const;

 private:
  struct Impl;
  explicit Container(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::pte
