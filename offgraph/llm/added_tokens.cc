#include "offgraph/llm/added_tokens.h"

#include <algorithm>
#include <limits>

#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// Bounds the work at one place of a text. The longest contents in use have some 200 bytes.
constexpr size_t kLongestContent = 4096;

AddedToken ParseToken(const JsonNode& node) {
  node.AllowOnly({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = static_cast<int32_t>(node.At("id").Integer(std::numeric_limits<int32_t>::max()));
  token.content = node.At("content").String();
  token.single_word = node.At("single_word").Bool();
  token.lstrip = node.At("lstrip").Bool();
  token.rstrip = node.At("rstrip").Bool();
  token.normalized = node.At("normalized").Bool();
  token.special = node.At("special").Bool();
  if (token.content.size() > kLongestContent) {
    node.Fail(ErrorCode::kUnsupported, "an added token of " + std::to_string(token.content.size()) +
                                           " bytes; at most " + std::to_string(kLongestContent) + " are supported");
  }
  return token;
}

bool SameSettings(const AddedToken& a, const AddedToken& b) {
  return a.single_word == b.single_word && a.lstrip == b.lstrip && a.rstrip == b.rstrip &&
         a.normalized == b.normalized && a.special == b.special;
}

bool EndsWithWord(std::string_view text) {
  size_t pos = text.size();
  return pos > 0 && IsWordCharacter(PreviousCodePoint(text, &pos));
}

bool BeginsWithWord(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &pos));
}

}  // namespace

AddedTokens::Trie::Trie() : token_(1, -1) {}

void AddedTokens::Trie::Add(std::string_view content, int32_t token) {
  first_[static_cast<unsigned char>(content[0])] = true;
  uint64_t node = 0;
  for (const char c : content) {
    const uint64_t key = node << 8 | static_cast<unsigned char>(c);
    if (const uint64_t* child = children_.Find(key)) {
      node = *child;
    } else {
      node = token_.size();
      token_.push_back(-1);
      children_.Insert(key, node);
    }
  }
  if (token_[node] < 0) token_[node] = token;
}

int32_t AddedTokens::Trie::Longest(std::string_view text, size_t pos, size_t* end) const {
  int32_t found = -1;
  if (!first_[static_cast<unsigned char>(text[pos])]) return found;
  uint64_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const uint64_t* child = children_.Find(node << 8 | static_cast<unsigned char>(text[i]));
    if (child == nullptr) break;
    node = *child;
    if (token_[node] >= 0) {
      found = token_[node];
      *end = i + 1;
    }
  }
  return found;
}

AddedTokens::AddedTokens(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  const std::vector<JsonNode> items = node.Items();
  tokens_.reserve(items.size());  // by_content_ points into it
  auto next_id = static_cast<int64_t>(vocabulary.size());
  for (const JsonNode& item : items) {
    AddedToken token = ParseToken(item);
    if (token.content.empty()) continue;  // as the reference does
    if (const AddedToken* twin = Find(token.content)) {
      if (twin->id != token.id || !SameSettings(*twin, token)) {
        item.Fail(ErrorCode::kBadFile, "\"" + token.content + "\" was added before, with another id or other settings");
      }
      continue;
    }
    const std::optional<int32_t> in_model = vocabulary.Find(token.content);
    NormalizedText normalized{token.content};
    if (token.normalized && normalizer != nullptr) normalizer->Apply(&normalized);
    token.to_decode = std::move(normalized.text);
    token.literal = !in_model && token.to_decode == token.content;
    const int64_t expected = in_model.value_or(static_cast<int32_t>(next_id));
    if (token.id != expected) {
      item.Fail(ErrorCode::kBadFile,
                "\"" + token.content + "\" has the id " + std::to_string(token.id) + ", but " +
                    (in_model ? "the same token of the model's vocabulary has " : "the next free one is ") +
                    std::to_string(expected) +
                    "; the reference would use that one, and the model was probably trained with it. Correct the id");
    }
    next_id = std::max(next_id, expected + 1);
    if (!in_model && vocabulary.Token(token.id)) {
      item.Fail(ErrorCode::kBadFile, "\"" + token.content + "\" has the id " + std::to_string(token.id) +
                                         ", which is that of \"" + std::string(*vocabulary.Token(token.id)) + "\"");
    }
    by_id_[token.id] = tokens_.size();
    tokens_.push_back(std::move(token));
    by_content_[tokens_.back().content] = tokens_.size() - 1;
  }
  // Where two have the same normalized form, a special one goes first.
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      if (token.to_decode.empty()) continue;
      trie(token.normalized ? Stage::kNormalized : Stage::kRaw).Add(token.to_decode, static_cast<int32_t>(i));
    }
  }
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::vector<AddedTokenSplit> AddedTokens::Split(std::string_view text, Stage stage, bool skip_special) const {
  std::vector<AddedTokenSplit> splits;
  const Trie& contents = trie(stage);
  size_t covered = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = 0;
    const int32_t index = contents.Longest(text, pos, &end);
    if (index < 0) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    pos = end;  // also where the token is refused: the reference goes on behind it
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.special && skip_special) continue;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) continue;
    if (token.lstrip) {
      for (size_t at = begin; at > covered && IsWhitespace(PreviousCodePoint(text, &at));) begin = at;
      begin = std::max(begin, covered);
    }
    if (token.rstrip) {
      for (size_t at = end; at < text.size() && IsWhitespace(NextCodePoint(text, &at));) end = at;
    }
    if (begin > covered) splits.push_back({nullptr, covered, begin});
    splits.push_back({&token, begin, end});
    covered = end;
  }
  if (covered < text.size()) splits.push_back({nullptr, covered, text.size()});
  return splits;
}

}  // namespace offgraph::llm
