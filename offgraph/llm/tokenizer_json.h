// Reading tokenizer.json: the bytes into parts, and the parts field by field with errors that name the place.
//
// The vocabulary and the merges, which are nearly all of the file, go straight into their tables; the rest becomes a
// JSON tree.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/bpe.h"
#include "offgraph/llm/vocabulary.h"

namespace offgraph::llm {

// A value of the tree with its place, as in "tokenizer.json: decoder.decoders[2].pattern". A cheap view: the tree must
// outlive it.
class JsonNode {
 public:
  // The root of a file called `name`.
  JsonNode(const nlohmann::json& value, std::string name) : JsonNode(value, std::move(name), ": ") {}

  const std::string& place() const { return place_; }

  // Each throws Error(kBadFile) where the value is of another type.
  std::string String() const;
  // A string of one character.
  std::string Character() const;
  bool Bool() const;
  // 0 <= value <= most.
  int64_t Integer(int64_t most) const;
  std::vector<JsonNode> Items() const;
  // Whether it is a number, and 0.
  bool IsZero() const;

  // The field of an object; kBadFile where it is absent.
  JsonNode At(std::string_view key) const;
  // The same, but nothing where it is absent or null.
  std::optional<JsonNode> Find(std::string_view key) const;
  bool BoolOr(std::string_view key, bool otherwise) const;
  // Throws Error(kUnsupported) where the object has a field that is none of these: ignoring it could change ids.
  void AllowOnly(std::initializer_list<std::string_view> keys) const;

  // Throws an Error whose message is the place and `message`.
  [[noreturn]] void Fail(ErrorCode code, const std::string& message) const;
  // For a "type", or another name out of a list, that is not known.
  [[noreturn]] void Unknown(const std::string& what, const std::string& name) const;

 private:
  JsonNode(const nlohmann::json& value, std::string place, std::string_view separator)
      : value_(&value), place_(std::move(place)), separator_(separator) {}

  const nlohmann::json& Object() const;

  const nlohmann::json* value_;
  std::string place_;
  std::string_view separator_;  // between place_ and the name of a field
};

struct TokenizerJson {
  std::unique_ptr<nlohmann::json> tree;  // without model.vocab and model.merges
  std::shared_ptr<Vocabulary> vocabulary;
  std::vector<Merge> merges;
};

// `name` is what messages call the file. Throws Error(kBadFile) for what is no JSON, nested deeper than 64, or has a
// vocabulary or merges of a wrong form. Memory is a small multiple of the bytes.
TokenizerJson ReadTokenizerJson(std::string_view bytes, const std::string& name);

}  // namespace offgraph::llm
