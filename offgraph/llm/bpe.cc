#include "offgraph/llm/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "offgraph/cache/error.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// Longer words are rare and not worth a comparison.
constexpr size_t kLongestCachedWord = 128;
constexpr size_t kLargestCache = size_t{1} << 14;

uint64_t Pack(int64_t high, int64_t low) { return static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(low); }
int32_t High(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
int32_t Low(uint64_t pair) { return static_cast<int32_t>(pair & 0xFFFFFFFFu); }

std::string ByteToken(unsigned byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

}  // namespace

Bpe::Bpe(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<Merge>& merges, BpeOptions options,
         std::string where)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      where_(std::move(where)),
      merges_(merges.size()) {
  std::string whole;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& left = merges[rank].first;
    const std::string& right = merges[rank].second;
    const auto id_of = [&](const std::string& token) {
      const std::optional<int32_t> id = vocabulary_->Find(token);
      if (!id) {
        throw Error(ErrorCode::kBadFile, where_ + ".merges[" + std::to_string(rank) + "]: \"" + left + "\" and \"" +
                                             right + "\" are to be merged, but the vocabulary has no token \"" + token +
                                             "\"");
      }
      return *id;
    };
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    const size_t prefix = std::min(options_.continuing_prefix.size(), right.size());
    whole.assign(left).append(right, prefix, std::string::npos);
    merges_.Insert(Pack(left_id, right_id), Pack(static_cast<int64_t>(rank), id_of(whole)));
  }
  for (size_t i = 0; i < vocabulary_->size(); ++i) {
    const std::string_view token = vocabulary_->TokenAt(i);
    if (token.empty() || token.size() != Utf8Length(static_cast<unsigned char>(token[0]))) continue;
    size_t position = 0;
    characters_.Insert(NextCodePoint(token, &position), static_cast<uint64_t>(vocabulary_->IdAt(i)));
  }
  if (options_.byte_fallback) {
    for (unsigned byte = 0; byte < 256; ++byte) byte_tokens_.push_back(vocabulary_->Find(ByteToken(byte)).value_or(-1));
  }
}

int32_t Bpe::CharacterToken(std::string_view character, bool first, bool last) const {
  const std::string_view prefix = first ? std::string_view() : options_.continuing_prefix;
  const std::string_view suffix = last ? options_.end_of_word_suffix : std::string_view();
  if (prefix.empty() && suffix.empty()) {
    size_t position = 0;
    const uint64_t* id = characters_.Find(NextCodePoint(character, &position));
    return id == nullptr ? -1 : static_cast<int32_t>(*id);
  }
  return vocabulary_->Find(std::string(prefix).append(character).append(suffix)).value_or(-1);
}

int32_t Bpe::UnknownToken() const {
  const std::optional<int32_t> id = vocabulary_->Find(*options_.unknown_token);
  if (!id) {
    throw Error(ErrorCode::kBadFile, where_ +
                                         ".unk_token: the text has a character that is no token, and neither is \"" +
                                         *options_.unknown_token + "\", which should stand for it");
  }
  return *id;
}

BpeEncoder::BpeEncoder(const Bpe& bpe, size_t text_bytes)
    : bpe_(bpe), cache_(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 16, kLargestCache))) {}

void BpeEncoder::Encode(std::string_view word, std::vector<int32_t>* ids) {
  if (word.empty()) return;
  CachedWord* cached = nullptr;
  if (word.size() <= kLongestCachedWord) {
    cached = &cache_[std::hash<std::string_view>{}(word) & (cache_.size() - 1)];
    if (cached->word == word) {
      ids->insert(ids->end(), cached->ids.begin(), cached->ids.end());
      return;
    }
  }
  const size_t begin = ids->size();
  const std::optional<int32_t> whole = bpe_.options_.ignore_merges ? bpe_.vocabulary_->Find(word) : std::nullopt;
  if (whole) {
    ids->push_back(*whole);
  } else {
    SplitIntoSymbols(word);
    MergeSymbols();
    if (!symbols_.empty()) {
      for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
        ids->push_back(symbols_[static_cast<size_t>(i)].id);
      }
    }
  }
  if (cached != nullptr) {
    cached->word.assign(word);
    cached->ids.assign(ids->begin() + static_cast<std::ptrdiff_t>(begin), ids->end());
  }
}

void BpeEncoder::AddSymbol(int32_t id) {
  const auto index = static_cast<int32_t>(symbols_.size());
  symbols_.push_back({id, index - 1, index + 1});
}

void BpeEncoder::SplitIntoSymbols(std::string_view word) {
  symbols_.clear();
  const BpeOptions& options = bpe_.options_;
  // The unknown token is held back for fusing. Byte tokens do not flush it: where some bytes have a token and others
  // do not, it comes behind them, as in the reference.
  int32_t unknown = -1;
  for (size_t position = 0; position < word.size();) {
    const size_t length = std::min(Utf8Length(static_cast<unsigned char>(word[position])), word.size() - position);
    const std::string_view character = word.substr(position, length);
    const bool first = position == 0;
    position += length;
    const bool last = position == word.size();
    const int32_t id = bpe_.CharacterToken(character, first, last);
    if (id >= 0) {
      if (unknown >= 0) AddSymbol(unknown);
      unknown = -1;
      AddSymbol(id);
      continue;
    }
    if (options.byte_fallback) {
      std::string spelled(first ? std::string_view() : options.continuing_prefix);
      spelled.append(character).append(last ? options.end_of_word_suffix : std::string_view());
      const auto token_of = [&](char byte) { return bpe_.byte_tokens_[static_cast<unsigned char>(byte)]; };
      if (std::all_of(spelled.begin(), spelled.end(), [&](char byte) { return token_of(byte) >= 0; })) {
        for (const char byte : spelled) AddSymbol(token_of(byte));
        continue;
      }
    }
    if (options.unknown_token) {
      if (unknown >= 0 && !options.fuse_unknown) AddSymbol(unknown);
      unknown = bpe_.UnknownToken();
    }
  }
  if (unknown >= 0) AddSymbol(unknown);
  if (!symbols_.empty()) symbols_.back().next = -1;
}

void BpeEncoder::AddCandidate(int32_t left) {
  const Symbol& symbol = symbols_[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const int32_t right_id = symbols_[static_cast<size_t>(symbol.next)].id;
  const uint64_t* merge = bpe_.merges_.Find(Pack(symbol.id, right_id));
  if (merge == nullptr) return;
  heap_.push_back({Pack(High(*merge), left), symbol.id, right_id, Low(*merge)});
}

void BpeEncoder::MergeSymbols() {
  const auto later = [](const Candidate& a, const Candidate& b) { return a.rank_and_position > b.rank_and_position; };
  const auto add = [&](int32_t left) {
    const size_t before = heap_.size();
    AddCandidate(left);
    if (heap_.size() != before) std::push_heap(heap_.begin(), heap_.end(), later);
  };
  heap_.clear();
  for (size_t i = 0; i < symbols_.size(); ++i) AddCandidate(static_cast<int32_t>(i));
  std::make_heap(heap_.begin(), heap_.end(), later);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    const int32_t position = Low(candidate.rank_and_position);
    Symbol& left = symbols_[static_cast<size_t>(position)];
    if (left.id != candidate.left || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    if (right.id != candidate.right) continue;
    left.id = candidate.merged;
    left.next = right.next;
    right.id = -1;  // no candidate has this id: all that name the symbol are stale
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = position;
    if (left.previous >= 0) add(left.previous);
    add(position);
  }
}

}  // namespace offgraph::llm
