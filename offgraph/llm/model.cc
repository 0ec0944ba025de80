#include "offgraph/llm/model.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "offgraph/cache/error.h"
#include "offgraph/llm/model_files.h"

namespace offgraph::llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMethod = "forward";
constexpr const char* kBackend = "MLXBackend";

// A constant method's numbers; empty where the program has no such method.
std::vector<int64_t> Constants(const pte::Container& container, const std::string& method) {
  const pte::MethodInfo* found = container.FindMethod(method);
  if (found == nullptr) return {};
  std::vector<int64_t> numbers;
  bool known = found->constants.has_value();
  if (known) {
    for (const pte::ConstantValue& value : *found->constants) {
      if (const auto* one = std::get_if<int64_t>(&value)) {
        numbers.push_back(*one);
      } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
        numbers.insert(numbers.end(), list->begin(), list->end());
      } else {
        known = false;
      }
    }
  }
  if (!known || numbers.empty()) {
    throw Error(ErrorCode::kBadFile, container.name() + ": method " + method + " does not return constant integers");
  }
  return numbers;
}

int64_t Constant(const pte::Container& container, const std::string& method, int64_t otherwise) {
  const std::vector<int64_t> numbers = Constants(container, method);
  if (numbers.empty()) return otherwise;
  if (numbers.size() != 1 || numbers.front() <= 0) {
    throw Error(ErrorCode::kBadFile, container.name() + ": method " + method + " returns " +
                                         (numbers.size() == 1 ? std::to_string(numbers.front())
                                                              : std::to_string(numbers.size()) + " numbers") +
                                         ", expected one number above 0");
  }
  return numbers.front();
}

// One number per cache.
std::vector<int64_t> PerCache(const pte::Container& container, const std::string& method, int64_t n_caches,
                              int64_t lowest) {
  std::vector<int64_t> numbers = Constants(container, method);
  if (static_cast<int64_t>(numbers.size()) != n_caches) {
    throw Error(ErrorCode::kBadFile, container.name() + ": method " + method + " returns " +
                                         std::to_string(numbers.size()) + " numbers, get_n_caches says " +
                                         std::to_string(n_caches));
  }
  for (const int64_t number : numbers) {
    if (number < lowest) {
      throw Error(ErrorCode::kBadFile, container.name() + ": method " + method + " returns " + std::to_string(number) +
                                           ", expected at least " + std::to_string(lowest));
    }
  }
  return numbers;
}

std::string MethodNames(const pte::Container& container) {
  std::string names;
  for (const pte::MethodInfo& method : container.methods()) names += (names.empty() ? "" : ", ") + method.name;
  return names.empty() ? "none" : names;
}

// The payload of `forward`, where it is one call of the MLX backend and nothing else.
const pte::DelegateInfo& FindPayload(const pte::Container& container) {
  const std::string& name = container.name();
  const pte::MethodInfo* method = container.FindMethod(kMethod);
  if (method == nullptr) {
    throw Error(ErrorCode::kUnsupported, name + ": not a language model: it has no method \"" + kMethod +
                                             "\" (its methods: " + MethodNames(container) + ")");
  }
  for (const pte::DelegateInfo& delegate : method->delegates) {
    if (delegate.id != kBackend) {
      throw Error(ErrorCode::kUnsupported, name + ": exported for " + delegate.id + ", expected " + kBackend +
                                               "; export it with ExecuTorch's MLX exporter");
    }
  }
  if (!method->whole_delegate) {
    throw Error(ErrorCode::kUnsupported,
                name + ": \"" + kMethod + "\" calls " + std::to_string(method->delegate_calls) + " MLX programs and " +
                    std::to_string(method->kernel_calls) +
                    " kernels of ExecuTorch, expected one MLX program alone; run it in ExecuTorch with the plugin");
  }
  return method->delegates[*method->whole_delegate];
}

}  // namespace

std::shared_ptr<const Model> Model::Open(const std::string& path, const ModelOptions& options) {
  std::shared_ptr<Model> model(new Model());
  const std::string file = FindProgramFile(path);
  // Side by side: a tokenizer's tables take longer to build than a program does. Where no thread can be had, or the
  // program is refused first, nothing is lost but time.
  std::future<void> text;
  if (options.with_text) {
    text = std::async(std::launch::async | std::launch::deferred, [&] { model->OpenText(file, options.tokenizer); });
  }
  model->OpenProgram(file, options);
  if (text.valid()) text.get();
  return model;
}

Model::~Model() = default;

void Model::OpenProgram(const std::string& file, const ModelOptions& options) {
  container_ = pte::Container::Open(file);
  const pte::DelegateInfo& payload = FindPayload(*container_);
  const auto weights = [container = container_](std::string_view key) -> std::optional<program::WeightBytes> {
    const std::optional<std::span<const std::byte>> bytes = container->FindData(key);
    if (!bytes) return std::nullopt;
    return program::WeightBytes{
        *bytes, container, [file = container.get()](std::span<const std::byte> unused) { file->Evict(unused); },
        [file = container.get()](std::span<const std::byte> part, std::byte* to) { file->Read(part, to); }};
  };
  program_ = program::Program::Load(payload.processed, weights, file,
                                    {.optimize = options.optimize,
                                     .exact = options.exact,
                                     .fp32_results = options.fp32_results,
                                     .lay_out = options.lay_out});
  const program::TokenInterface interface = program::ReadTokenInterface(*program_);
  info_.name = file;
  info_.vocab = interface.vocab;
  info_.logits_type = program::Name(interface.logits_type);
  info_.off_graph = !program_->cache_layers().empty();
  info_.max_context = Constant(*container_, "get_max_ctx_len", 0);
  if (info_.max_context == 0) {
    throw Error(ErrorCode::kUnsupported,
                file +
                    ": it does not say how long its context is (no method get_max_ctx_len); export it with "
                    "ExecuTorch's MLX language-model exporter");
  }
  info_.prefill_chunk =
      Constant(*container_, "get_prefill_chunk_size", interface.max_step > 0 ? interface.max_step : info_.max_context);
  if (interface.max_step > 0) info_.prefill_chunk = std::min(info_.prefill_chunk, interface.max_step);
  if (info_.off_graph) ReadCacheLayout();
}

// Without its windows a model would be run with full attention, which is silently wrong for one that has them.
void Model::ReadCacheLayout() {
  info_.n_caches = Constant(*container_, "get_n_caches", 0);
  for (const char* method : {"get_n_caches", "get_windows", "get_kv_heads", "get_head_dims"}) {
    if (container_->FindMethod(method) == nullptr) {
      throw Error(ErrorCode::kUnsupported, info_.name +
                                               ": it keeps its cache off the graph, and does not say how it "
                                               "is laid out (no method " +
                                               method + "); export it with ExecuTorch's MLX language-model exporter");
    }
  }
  info_.windows = PerCache(*container_, "get_windows", info_.n_caches, 0);
  info_.kv_heads = PerCache(*container_, "get_kv_heads", info_.n_caches, 1);
  info_.head_dims = PerCache(*container_, "get_head_dims", info_.n_caches, 1);
  for (const program::CacheLayerInfo& layer : program_->cache_layers()) {
    if (layer.layer_id >= info_.n_caches) {
      throw Error(ErrorCode::kBadFile, info_.name + ": a node names cache " + std::to_string(layer.layer_id) +
                                           ", get_n_caches says " + std::to_string(info_.n_caches));
    }
  }
}

void Model::OpenText(const std::string& file, const std::string& tokenizer) {
  const bool is_folder = !tokenizer.empty() && fs::is_directory(tokenizer);
  text_folder_ = is_folder ? fs::path(tokenizer) : fs::path(tokenizer.empty() ? file : tokenizer).parent_path();
  const fs::path tokenizer_file =
      tokenizer.empty() || is_folder ? text_folder_ / "tokenizer.json" : fs::path(tokenizer);
  // A tokenizer that was named must be there; one that was not may be absent until somebody asks for it.
  if (!tokenizer.empty() || fs::exists(tokenizer_file)) tokenizer_ = Tokenizer::Load(tokenizer_file);
  chat_template_ = ChatTemplate::Find(text_folder_.empty() ? fs::path(".") : text_folder_);
  FindSpecialTokens();
}

void Model::FindSpecialTokens() {
  const SpecialTokens special = ReadSpecialTokens(text_folder_.string());
  const auto add_end = [&](int64_t id) {
    const auto token = static_cast<TokenId>(id);
    if (std::ranges::find(end_tokens_, token) == end_tokens_.end()) end_tokens_.push_back(token);
  };
  const auto find_text = [&](const std::optional<std::string>& text) -> std::optional<TokenId> {
    return text && tokenizer_ ? tokenizer_->TokenToId(*text) : std::nullopt;
  };
  for (const int64_t id : special.end_ids) add_end(id);
  if (const std::optional<TokenId> id = find_text(special.end_text)) add_end(*id);
  bos_token_ = find_text(special.bos_text);
  if (special.bos_id) bos_token_ = static_cast<TokenId>(*special.bos_id);
  add_bos_ = special.add_bos;
}

const std::shared_ptr<const Tokenizer>& Model::tokenizer() const {
  if (!tokenizer_) {
    throw Error(ErrorCode::kIo, info_.name + ": there is no tokenizer.json beside it (in " +
                                    (text_folder_.empty() ? fs::path(".") : text_folder_).string() +
                                    "); name the file, or the folder that holds it, with --tokenizer");
  }
  return tokenizer_;
}

const ChatTemplate& Model::chat_template() const {
  if (!chat_template_) {
    throw Error(ErrorCode::kIo, info_.name +
                                    ": the model has no chat template: neither chat_template.jinja nor an entry "
                                    "of tokenizer_config.json is in " +
                                    (text_folder_.empty() ? fs::path(".") : text_folder_).string());
  }
  return *chat_template_;
}

std::vector<TokenId> Model::EncodePrompt(const std::string& text) const {
  std::vector<TokenId> tokens = tokenizer()->Encode(text, {.add_special_tokens = true});
  const bool begins = !tokens.empty() && bos_token_ && tokens.front() == *bos_token_;
  if (bos_token_ && !begins && (add_bos_ || tokens.empty())) tokens.insert(tokens.begin(), *bos_token_);
  if (tokens.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                info_.name +
                    ": an empty prompt starts from the beginning-of-sequence token, and the model has none (no "
                    "bos_token_id in generation_config.json or config.json, no bos_token in "
                    "tokenizer_config.json)");
  }
  return tokens;
}

std::vector<TokenId> Model::EncodeChat(std::span<const ChatMessage> messages) const {
  return tokenizer()->Encode(chat_template().Render(messages));
}

}  // namespace offgraph::llm
