#include "offgraph/llm/normalizer.h"

#include <utility>
#include <vector>

#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// Keeps the characters for which keep(c) holds, and passes each to write(c, out).
template <typename Keep>
void Filter(NormalizedText* text, Keep keep) {
  std::string kept;
  kept.reserve(text->text.size());
  for (size_t pos = 0; pos < text->text.size();) {
    const size_t begin = pos;
    if (keep(NextCodePoint(text->text, &pos))) {
      kept.append(text->text, begin, pos - begin);
    } else if (begin == 0) {
      text->at_origin = false;
    }
  }
  text->text = std::move(kept);
}

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> parts) : parts_(std::move(parts)) {}
  void Apply(NormalizedText* text) const override {
    for (const auto& part : parts_) part->Apply(text);
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(NormalizedText* text) const override {
    if (!text->text.empty()) text->text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Apply(NormalizedText* text) const override {
    const std::string& from = text->text;
    MatchFinder finder(pattern_);
    finder.Start(from);
    Match match;
    if (!finder.Next(&match)) return;
    std::string to;
    to.reserve(from.size());
    size_t copied = 0;
    do {
      if (match.begin == 0 && match.end > 0) {
        // The replacement counts as the last of the characters that it replaces.
        const bool one_character = match.end == Utf8Length(static_cast<unsigned char>(from[0]));
        text->at_origin = text->at_origin && one_character && !content_.empty();
      }
      to.append(from, copied, match.begin - copied).append(content_);
      copied = match.end;
    } while (finder.Next(&match));
    to.append(from, copied);
    text->text = std::move(to);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Unicode : public Normalizer {
 public:
  explicit Unicode(NormalForm form) : form_(form) {}
  void Apply(NormalizedText* text) const override { text->text = Normalize(form_, text->text); }

 private:
  NormalForm form_;
};

class Lower : public Normalizer {
 public:
  void Apply(NormalizedText* text) const override { text->text = Lowercase(text->text); }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void Apply(NormalizedText* text) const override {
    const std::string_view all = text->text;
    size_t begin = 0;
    for (size_t next = 0; left_ && next < all.size() && IsWhitespace(NextCodePoint(all, &next));) begin = next;
    size_t end = all.size();
    for (size_t next = end; right_ && next > begin && IsWhitespace(PreviousCodePoint(all, &next));) end = next;
    if (begin > 0) text->at_origin = false;
    text->text = std::string(all.substr(begin, end - begin));
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents : public Normalizer {
 public:
  void Apply(NormalizedText* text) const override {
    Filter(text, [](char32_t c) { return !IsMark(c); });
  }
};

class ByteLevel : public Normalizer {
 public:
  void Apply(NormalizedText* text) const override {
    std::string mapped;
    AppendByteCharacters(text->text, &mapped);
    text->text = std::move(mapped);
  }
};

// The ideographs that BERT sets apart with spaces.
bool IsChinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                                       {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                       {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& [first, last] : kRanges) {
    if (c >= first && c <= last) return true;
  }
  return false;
}

class Bert : public Normalizer {
 public:
  Bert(bool clean, bool chinese, bool strip_accents, bool lowercase)
      : clean_(clean), chinese_(chinese), strip_accents_(strip_accents), lowercase_(lowercase) {}

  void Apply(NormalizedText* text) const override {
    if (clean_) Clean(text);
    if (chinese_) SetChineseApart(text);
    if (strip_accents_) {
      text->text = Normalize(NormalForm::kNfd, text->text);
      Filter(text, [](char32_t c) { return !IsNonspacingMark(c); });
    }
    if (lowercase_) text->text = Lowercase(text->text);
  }

 private:
  static void Clean(NormalizedText* text) {
    Filter(text, [](char32_t c) {
      if (c == '\t' || c == '\n' || c == '\r') return true;
      return c != 0 && c != kReplacementCharacter && !IsControl(c);
    });
    std::string spaced;
    for (size_t pos = 0; pos < text->text.size();) {
      const char32_t c = NextCodePoint(text->text, &pos);
      AppendUtf8(IsWhitespace(c) ? U' ' : c, &spaced);
    }
    text->text = std::move(spaced);
  }

  static void SetChineseApart(NormalizedText* text) {
    std::string apart;
    for (size_t pos = 0; pos < text->text.size();) {
      const char32_t c = NextCodePoint(text->text, &pos);
      const bool chinese = IsChinese(c);
      if (chinese) apart += ' ';
      AppendUtf8(c, &apart);
      if (chinese) apart += ' ';
    }
    text->text = std::move(apart);
  }

  bool clean_;
  bool chinese_;
  bool strip_accents_;
  bool lowercase_;
};

std::unique_ptr<const Normalizer> ParseBert(const JsonNode& node) {
  node.AllowOnly({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowercase = node.BoolOr("lowercase", true);
  return std::make_unique<Bert>(node.BoolOr("clean_text", true), node.BoolOr("handle_chinese_chars", true),
                                node.BoolOr("strip_accents", lowercase), lowercase);
}

}  // namespace

Pattern ParsePattern(const JsonNode& node) {
  node.AllowOnly({"String", "Regex"});
  const std::optional<JsonNode> literal = node.Find("String");
  const std::optional<JsonNode> regex = node.Find("Regex");
  if (literal.has_value() == regex.has_value()) {
    node.Fail(ErrorCode::kBadFile, "expected either \"String\" or \"Regex\"");
  }
  if (regex) return Pattern::Regex(regex->String(), regex->place());
  if (literal->String().empty()) literal->Fail(ErrorCode::kUnsupported, "an empty pattern is not supported");
  return Pattern::Literal(literal->String());
}

std::unique_ptr<const Normalizer> ParseNormalizer(const JsonNode& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    node.AllowOnly({"type", "normalizers"});
    std::vector<std::unique_ptr<const Normalizer>> parts;
    for (const JsonNode& part : node.At("normalizers").Items()) parts.push_back(ParseNormalizer(part));
    return std::make_unique<Sequence>(std::move(parts));
  }
  if (type == "Prepend") {
    node.AllowOnly({"type", "prepend"});
    return std::make_unique<Prepend>(node.At("prepend").String());
  }
  if (type == "Replace") {
    node.AllowOnly({"type", "pattern", "content"});
    return std::make_unique<Replace>(ParsePattern(node.At("pattern")), node.At("content").String());
  }
  if (type == "Strip") {
    node.AllowOnly({"type", "strip_left", "strip_right"});
    return std::make_unique<Strip>(node.At("strip_left").Bool(), node.At("strip_right").Bool());
  }
  if (type == "BertNormalizer") return ParseBert(node);
  node.AllowOnly({"type"});
  if (type == "NFC") return std::make_unique<Unicode>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<Unicode>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<Unicode>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Unicode>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lower>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  node.Unknown("the normalizer", type);
}

}  // namespace offgraph::llm
