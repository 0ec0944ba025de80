#include "offgraph/llm/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "offgraph/cache/error.h"
#include "offgraph/llm/tokenizer_impl.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// Positions within a word are 32-bit, and byte characters take two bytes.
constexpr size_t kTextEnd = size_t{1} << 30;
constexpr uintmax_t kFileEnd = uintmax_t{1} << 30;

BpeOptions ParseBpeOptions(const JsonNode& node) {
  node.AllowOnly({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges"});
  if (const std::optional<JsonNode> dropout = node.Find("dropout")) {
    if (!dropout->IsZero()) {
      dropout->Fail(ErrorCode::kUnsupported, "dropout makes ids random; it is for training. Set it to null");
    }
  }
  const auto text = [&](std::string_view key) {
    const std::optional<JsonNode> field = node.Find(key);
    return field ? field->String() : std::string();
  };
  BpeOptions options;
  if (const std::optional<JsonNode> unknown = node.Find("unk_token")) options.unknown_token = unknown->String();
  options.fuse_unknown = node.BoolOr("fuse_unk", false);
  options.byte_fallback = node.BoolOr("byte_fallback", false);
  options.ignore_merges = node.BoolOr("ignore_merges", false);
  options.continuing_prefix = text("continuing_subword_prefix");
  options.end_of_word_suffix = text("end_of_word_suffix");
  return options;
}

std::unique_ptr<const Bpe> ParseModel(const JsonNode& node, TokenizerJson* json) {
  // Files older than the field have BPE models only.
  const std::optional<JsonNode> type = node.Find("type");
  if (type && type->String() != "BPE") type->Unknown("the model", type->String());
  if (json->vocabulary == nullptr) node.Fail(ErrorCode::kBadFile, "the field \"vocab\" is missing");
  json->vocabulary->Finish(node.place() + ".vocab");
  return std::make_unique<Bpe>(json->vocabulary, json->merges, ParseBpeOptions(node), node.place());
}

}  // namespace

int64_t Tokenizer::Impl::IdEnd() const {
  int64_t end = model->vocabulary().id_end();
  for (const AddedToken& token : added.tokens()) end = std::max(end, int64_t{token.id} + 1);
  return end;
}

void Tokenizer::Impl::EncodeSection(std::string_view section, bool at_origin, const EncodeOptions& options,
                                    BpeEncoder* encoder, std::vector<int32_t>* ids) const {
  NormalizedText normalized{std::string(section), at_origin};
  if (normalizer != nullptr) normalizer->Apply(&normalized);
  for (const AddedTokenSplit& split :
       added.Split(normalized.text, AddedTokens::Stage::kNormalized, options.special_tokens_as_text)) {
    if (split.token != nullptr) {
      ids->push_back(split.token->id);
      continue;
    }
    Words words;
    words.words.push_back({std::string_view(normalized.text).substr(split.begin, split.end - split.begin),
                           normalized.at_origin && split.begin == 0});
    if (pre_tokenizer != nullptr) pre_tokenizer->Apply(&words);
    for (const Word& word : words.words) encoder->Encode(word.text, ids);
  }
}

void Tokenizer::Impl::Decode(int32_t id, bool skip_special, DecodeStream* stream, std::string* out) const {
  const AddedToken* token = added.Find(id);
  if (token != nullptr) {
    if (token->special && skip_special) return;
    stream->Push(token->to_decode, token->literal, out);
  } else if (const std::optional<std::string_view> text = model->vocabulary().Token(id)) {
    stream->Push(*text, false, out);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::Load(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::kIo, path.string() + ": cannot read the tokenizer: " + message);
  };
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail(error.message());
  if (size >= kFileEnd) fail("the file has " + std::to_string(size) + " bytes; a tokenizer.json has less than 1 GiB");
  std::string json(size, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.read(json.data(), static_cast<std::streamsize>(size))) {
    fail(errno != 0 ? std::strerror(errno) : "it ended early");
  }
  return Parse(json, path.string());
}

std::shared_ptr<const Tokenizer> Tokenizer::Parse(std::string_view bytes, const std::string& name) {
  TokenizerJson json = ReadTokenizerJson(bytes, name);
  const JsonNode root(*json.tree, name);
  root.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                  "decoder", "model"});
  if (const std::optional<JsonNode> version = root.Find("version")) {
    if (version->String() != "1.0") version->Unknown("the version", version->String());
  }
  auto impl = std::make_unique<Impl>();
  impl->model = ParseModel(root.At("model"), &json);
  if (const auto node = root.Find("normalizer")) impl->normalizer = ParseNormalizer(*node);
  if (const auto node = root.Find("pre_tokenizer")) impl->pre_tokenizer = ParsePreTokenizer(*node);
  if (const auto node = root.Find("added_tokens")) {
    impl->added = AddedTokens(*node, impl->model->vocabulary(), impl->normalizer.get());
  }
  if (const auto node = root.Find("post_processor")) impl->post_processor = PostProcessor(*node, impl->IdEnd());
  if (const auto node = root.Find("decoder")) impl->decoder = Decoder(*node);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() >= kTextEnd) {
    throw Error(ErrorCode::kOutOfRange, "a text of " + std::to_string(text.size()) +
                                            " bytes is to be encoded; at most 1 GiB at once is supported");
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = RepairUtf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  BpeEncoder encoder(*impl_->model, text.size());
  for (const AddedTokenSplit& split :
       impl_->added.Split(text, AddedTokens::Stage::kRaw, options.special_tokens_as_text)) {
    if (split.token != nullptr) {
      ids.push_back(split.token->id);
    } else {
      impl_->EncodeSection(text.substr(split.begin, split.end - split.begin), split.begin == 0, options, &encoder,
                           &ids);
    }
  }
  return impl_->post_processor.Apply(std::move(ids), options.add_special_tokens);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  DecodeStream stream(impl_->decoder);
  for (const int32_t id : ids) impl_->Decode(id, skip_special, &stream, &text);
  stream.Finish(&text);
  return text;
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const AddedToken* added = impl_->added.Find(token);
  return added != nullptr ? std::optional<int32_t>(added->id) : impl_->model->vocabulary().Find(token);
}

std::optional<std::string_view> Tokenizer::IdToToken(int32_t id) const {
  const AddedToken* added = impl_->added.Find(id);
  return added != nullptr ? std::optional<std::string_view>(added->content) : impl_->model->vocabulary().Token(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* added = impl_->added.Find(id);
  return added != nullptr && added->special;
}

std::vector<int32_t> Tokenizer::SpecialIds() const {
  std::vector<int32_t> ids;
  for (const AddedToken& token : impl_->added.tokens()) {
    if (token.special) ids.push_back(token.id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

int64_t Tokenizer::vocab_size() const { return impl_->IdEnd(); }

}  // namespace offgraph::llm
