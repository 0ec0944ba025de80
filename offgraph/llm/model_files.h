// The small files that come with a model: where they are, and what they say about its special tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace offgraph::llm {

// What generation_config.json, config.json and tokenizer_config.json of a folder say. Each file may be absent, and so
// may each entry; a file that is there and is not JSON, or an entry of the wrong type, is Error(kBadFile).
struct SpecialTokens {
  std::vector<int64_t> end_ids;         // eos_token_id of generation_config.json, or else of config.json
  std::optional<int64_t> bos_id;        // bos_token_id of the same
  std::optional<std::string> end_text;  // eos_token of tokenizer_config.json
  std::optional<std::string> bos_text;  // bos_token
  bool add_bos = false;                 // add_bos_token of tokenizer_config.json
};
SpecialTokens ReadSpecialTokens(const std::string& folder);

// Folder or .pte -> the .pte. A folder must hold model.pte, or exactly one file that ends in .pte.
// Throws kIo where there is none, or more than one to choose from, naming them.
std::string FindProgramFile(const std::string& path);

// The whole of a file. Throws kIo, naming it, where it cannot be read or is larger than `limit` bytes.
std::string ReadSmallFile(const std::string& path, int64_t limit = int64_t{64} << 20);

}  // namespace offgraph::llm
