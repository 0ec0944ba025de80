#include "offgraph/pte/container.h"

#include <cstring>
#include <unordered_map>

#include "offgraph/pte/bad_file.h"
#include "offgraph/pte/file_layout.h"
#include "offgraph/pte/mapped_file.h"
#include "offgraph/pte/methods.h"
#include "offgraph/pte/schema/program_generated.h"
#include "offgraph/pte/segments.h"

namespace offgraph::pte {
namespace {

namespace fb = executorch_flatbuffer;

// Limits of the FlatBuffer's verifier: the schema nests less than ten tables deep, and a file of a million tables
// (each constant is one or two) is none that an exporter wrote.
constexpr uint32_t kMaxDepth = 16;
constexpr uint32_t kMaxTables = 1'000'000;

const fb::Program& VerifyProgram(std::span<const std::byte> bytes, const std::string& name) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, kMaxTables);
  if (!fb::VerifyProgramBuffer(verifier)) {
    throw BadFile(name, "damaged: the program in its first " + std::to_string(bytes.size()) +
                            " bytes is no valid FlatBuffer of ExecuTorch's schema");
  }
  return *fb::GetProgram(data);
}

}  // namespace

struct Container::Impl {
  std::unique_ptr<MappedFile> file;  // null where the bytes are somebody else's
  std::string name;
  size_t size = 0;
  std::vector<MethodInfo> methods;
  std::vector<std::string> data_keys;                                     // in the file's order
  std::unordered_map<std::string_view, std::span<const std::byte>> data;  // the keys point into the file

  void Read(std::span<const std::byte> bytes) {
    size = bytes.size();
    const FileLayout layout = ReadLayout(bytes, name);
    const fb::Program& program = VerifyProgram(layout.program, name);
    const Segments segments(program, layout, name);
    Budget budget(name, bytes.size());
    methods = ReadMethods(program, segments, name, budget);
    ReadNamedData(program, segments, budget);
  }

  void ReadNamedData(const fb::Program& program, const Segments& segments, Budget& budget) {
    if (program.named_data() == nullptr) return;
    budget.Charge(program.named_data()->size());
    data_keys.reserve(program.named_data()->size());
    for (uint32_t i = 0; i < program.named_data()->size(); ++i) {
      const fb::NamedData& entry = *program.named_data()->Get(i);
      if (entry.key() == nullptr) throw BadFile(name, "named data " + std::to_string(i) + " has no key");
      budget.Charge(entry.key()->size());
      const auto bytes = segments.At(entry.segment_index(), "named data '" + entry.key()->str() + "'");
      if (!data.emplace(entry.key()->string_view(), bytes).second) {
        throw BadFile(name, "two named data have the key '" + entry.key()->str() + "'");
      }
      data_keys.push_back(entry.key()->str());
    }
  }
};

Container::Container(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Container::~Container() = default;

std::shared_ptr<const Container> Container::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->name = path;
  impl->file = std::make_unique<MappedFile>(path);
  impl->Read(impl->file->bytes());
  return std::shared_ptr<const Container>(new Container(std::move(impl)));
}

std::shared_ptr<const Container> Container::Parse(std::span<const std::byte> bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->Read(bytes);
  return std::shared_ptr<const Container>(new Container(std::move(impl)));
}

const std::string& Container::name() const { return impl_->name; }
size_t Container::size() const { return impl_->size; }
const std::vector<MethodInfo>& Container::methods() const { return impl_->methods; }

const MethodInfo* Container::FindMethod(std::string_view name) const {
  for (const MethodInfo& method : impl_->methods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

std::optional<std::span<const std::byte>> Container::FindData(std::string_view key) const {
  const auto found = impl_->data.find(key);
  if (found == impl_->data.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> Container::DataKeys() const { return impl_->data_keys; }

void Container::Evict(std::span<const std::byte> data) const {
  if (impl_->file != nullptr) impl_->file->Evict(data);
}

void Container::Read(std::span<const std::byte> part, std::byte* to) const {
  if (impl_->file != nullptr) {
    impl_->file->Read(part, to);
  } else {
    std::memcpy(to, part.data(), part.size());
  }
}

}  // namespace offgraph::pte
