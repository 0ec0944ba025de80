// Model: a language model that was opened from disk: its program, and what belongs to its text (tokenizer, chat
// template, special tokens). Immutable, so that any number of sessions share it, on any threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offgraph/llm/chat_template.h"
#include "offgraph/llm/tokenizer.h"
#include "offgraph/program/program.h"
#include "offgraph/program/token_runner.h"
#include "offgraph/pte/container.h"

namespace offgraph::llm {

using TokenId = int32_t;

struct ModelOptions {
  // tokenizer.json, or a folder that holds it; empty: beside the program. chat_template.jinja, tokenizer_config.json,
  // generation_config.json and config.json are read from the same folder.
  std::string tokenizer{};
  // False: the program alone is wanted (a benchmark, an inspection); no file beside it is read.
  bool with_text = true;
  // False: the program runs op by op, as the exporter wrote it (to look into a file, or to compare).
  bool optimize = true;
  // False: weights are laid out for the kernels in the first step, if there is one (for an inspection).
  bool lay_out = true;
  // True: the values that the program's own ops and types give (program::LoadOptions::exact). Where layers are
  // quantized, several times slower.
  bool exact = false;
  // With `exact`: products are exact, but results between ops stay fp32 (program::LoadOptions::fp32_results).
  bool fp32_results = false;
};

// What the program says about itself, through its constant methods (in parentheses) and its declared shapes.
struct ModelInfo {
  std::string name;                // the file
  bool off_graph = true;           // false: the cache is inside the graph, and the next four are not known
  int64_t n_caches = 0;            // layers that own K and V (get_n_caches)
  std::vector<int64_t> kv_heads;   // [n_caches] (get_kv_heads)
  std::vector<int64_t> head_dims;  // [n_caches], of K and of V (get_head_dims)
  std::vector<int64_t> windows;    // [n_caches]; 0: full attention (get_windows)
  int64_t max_context = 0;         // tokens, as exported (get_max_ctx_len)
  int64_t prefill_chunk = 0;       // tokens of the longest step (get_prefill_chunk_size)
  int64_t vocab = 0;               // logits per token; 0: not declared
  std::string logits_type;         // "fp32", "fp16" or "bf16"
};

class Model {
 public:
  // `path`: a .pte file, or a folder that holds one. Throws kIo for a file that is missing or cannot be read, kBadFile
  // for one that is damaged, kUnsupported for a program that is something else than an off-graph or in-graph language
  // model for the MLX backend. A missing tokenizer or template is an error only when it is asked for.
  static std::shared_ptr<const Model> Open(const std::string& path, const ModelOptions& options = {});
  ~Model();

  const ModelInfo& info() const { return info_; }
  const pte::Container& container() const { return *container_; }
  const std::shared_ptr<const program::Program>& program() const { return program_; }

  // Throws kIo, naming the places that were searched, where the model came without one.
  const std::shared_ptr<const Tokenizer>& tokenizer() const;
  const ChatTemplate& chat_template() const;

  // Tokens that end a reply: eos_token_id of generation_config.json, or else of config.json, and eos_token of
  // tokenizer_config.json. May be empty.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  // From the same files; absent where the model has none.
  std::optional<TokenId> bos_token() const { return bos_token_; }

  // The tokens of a plain text that starts a sequence: with the special tokens that the tokenizer adds; where that
  // gives none (an empty text), the beginning-of-sequence token alone. Throws kInvalidArgument where there is none.
  std::vector<TokenId> EncodePrompt(const std::string& text) const;
  // The tokens of a conversation whose next message is the model's, through the chat template.
  std::vector<TokenId> EncodeChat(std::span<const ChatMessage> messages) const;

 private:
  Model() = default;
  void OpenProgram(const std::string& file, const ModelOptions& options);
  void ReadCacheLayout();
  void OpenText(const std::string& file, const std::string& tokenizer);
  void FindSpecialTokens();

  ModelInfo info_;
  std::shared_ptr<const pte::Container> container_;
  std::shared_ptr<const program::Program> program_;
  std::filesystem::path text_folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null where there is none
  std::optional<ChatTemplate> chat_template_;
  std::vector<TokenId> end_tokens_;
  std::optional<TokenId> bos_token_;
  bool add_bos_ = false;
};

}  // namespace offgraph::llm
