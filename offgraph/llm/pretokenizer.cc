#include "offgraph/llm/pretokenizer.h"

#include <utility>

#include "offgraph/llm/normalizer.h"
#include "offgraph/llm/regex.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// The expression of GPT-2: contractions, and letters, numbers or others with one space in front, and spaces.
constexpr std::string_view kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of a delimiter.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior ParseBehavior(const JsonNode& node) {
  const std::string name = node.String();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  node.Unknown("the behavior", name);
}

// A part of a word: a delimiter, or what is between two.
struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool is_delimiter = false;
};

// Cuts one word into parts that cover it. Scratch of one call on one thread.
class Cutter {
 public:
  virtual ~Cutter() = default;
  virtual void Cut(std::string_view word, std::vector<Part>* parts) = 0;
};

class PatternCutter : public Cutter {
 public:
  explicit PatternCutter(const Pattern& pattern) : finder_(pattern) {}
  void Cut(std::string_view word, std::vector<Part>* parts) override {
    finder_.Start(word);
    size_t covered = 0;
    for (Match match; finder_.Next(&match);) {
      if (match.begin > covered) parts->push_back({covered, match.begin, false});
      parts->push_back({match.begin, match.end, true});
      covered = match.end;
    }
    if (covered < word.size()) parts->push_back({covered, word.size(), false});
  }

 private:
  MatchFinder finder_;
};

// Every character of a class is a delimiter of its own.
class ClassCutter : public Cutter {
 public:
  explicit ClassCutter(bool (*is_delimiter)(char32_t)) : is_delimiter_(is_delimiter) {}
  void Cut(std::string_view word, std::vector<Part>* parts) override {
    size_t covered = 0;
    for (size_t pos = 0; pos < word.size();) {
      const size_t begin = pos;
      if (!is_delimiter_(NextCodePoint(word, &pos))) continue;
      if (begin > covered) parts->push_back({covered, begin, false});
      parts->push_back({begin, pos, true});
      covered = pos;
    }
    if (covered < word.size()) parts->push_back({covered, word.size(), false});
  }

 private:
  bool (*is_delimiter_)(char32_t);
};

// Runs of word characters and runs of others, with no space, are delimiters (the "Whitespace" pre-tokenizer).
class WordCutter : public Cutter {
 public:
  void Cut(std::string_view word, std::vector<Part>* parts) override {
    enum class Kind { kNone, kSpace, kWord, kOther };
    Kind kind = Kind::kNone;
    for (size_t pos = 0; pos < word.size();) {
      const size_t begin = pos;
      const char32_t c = NextCodePoint(word, &pos);
      const Kind next = IsWordCharacter(c) ? Kind::kWord : IsWhitespace(c) ? Kind::kSpace : Kind::kOther;
      if (next == kind) {
        parts->back().end = pos;
      } else {
        parts->push_back({begin, pos, next != Kind::kSpace});
      }
      kind = next;
    }
  }
};

// Joins parts as `behavior` says, in place.
void JoinParts(Behavior behavior, std::vector<Part>* parts) {
  std::vector<Part> joined;
  joined.reserve(parts->size());
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      for (const Part& part : *parts) {
        if (!part.is_delimiter) joined.push_back(part);
      }
      break;
    case Behavior::kMergedWithPrevious:
    case Behavior::kContiguous: {
      // A delimiter joins what precedes it unless that ends with a delimiter; contiguous: like joins like.
      bool previous = false;
      for (const Part& part : *parts) {
        const bool join =
            behavior == Behavior::kContiguous ? part.is_delimiter == previous : part.is_delimiter && !previous;
        if (join && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous = part.is_delimiter;
      }
      break;
    }
    case Behavior::kMergedWithNext: {
      // A part joins the delimiter in front of it unless it is one itself.
      bool previous = false;
      for (const Part& part : *parts) {
        if (previous && !part.is_delimiter) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous = part.is_delimiter;
      }
      break;
    }
  }
  *parts = std::move(joined);
}

void CutWords(Cutter* cutter, Behavior behavior, bool invert, Words* words) {
  std::vector<Word> cut;
  cut.reserve(words->words.size());
  std::vector<Part> parts;
  for (const Word& word : words->words) {
    parts.clear();
    cutter->Cut(word.text, &parts);
    if (invert) {
      for (Part& part : parts) part.is_delimiter = !part.is_delimiter;
    }
    JoinParts(behavior, &parts);
    for (const Part& part : parts) {
      if (part.end > part.begin) {
        cut.push_back({word.text.substr(part.begin, part.end - part.begin), word.at_origin && part.begin == 0});
      }
    }
  }
  words->words = std::move(cut);
}

// Rewrites every word with write(word, out), which appends to one string for all.
template <typename Write>
void RewriteWords(Words* words, Write write) {
  std::string& text = words->storage.emplace_back();
  std::vector<size_t> ends;
  ends.reserve(words->words.size());
  for (const Word& word : words->words) {
    write(word, &text);
    ends.push_back(text.size());
  }
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    words->words[i].text = std::string_view(text).substr(begin, ends[i] - begin);
    begin = ends[i];
  }
}

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void Apply(Words* words) const override {
    for (const auto& part : parts_) part->Apply(words);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

class SplitByPattern : public PreTokenizer {
 public:
  SplitByPattern(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void Apply(Words* words) const override {
    PatternCutter cutter(pattern_);
    CutWords(&cutter, behavior_, invert_, words);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class SplitByClass : public PreTokenizer {
 public:
  SplitByClass(bool (*is_delimiter)(char32_t), Behavior behavior) : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void Apply(Words* words) const override {
    ClassCutter cutter(is_delimiter_);
    CutWords(&cutter, behavior_, /*invert=*/false, words);
  }

 private:
  bool (*is_delimiter_)(char32_t);
  Behavior behavior_;
};

class Whitespace : public PreTokenizer {
 public:
  void Apply(Words* words) const override {
    WordCutter cutter;
    CutWords(&cutter, Behavior::kRemoved, /*invert=*/true, words);
  }
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, std::string where) : add_prefix_space_(add_prefix_space) {
    if (use_regex) split_.emplace(Pattern::Regex(kByteLevelExpression, std::move(where)), Behavior::kIsolated, false);
  }

  void Apply(Words* words) const override {
    if (add_prefix_space_) {
      RewriteWords(words, [](const Word& word, std::string* out) {
        if (word.text[0] != ' ') *out += ' ';
        out->append(word.text);
      });
    }
    if (split_) split_->Apply(words);
    RewriteWords(words, [](const Word& word, std::string* out) { AppendByteCharacters(word.text, out); });
  }

 private:
  bool add_prefix_space_;
  std::optional<SplitByPattern> split_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceSettings settings)
      : settings_(std::move(settings)),
        split_(Pattern::Literal(settings_.replacement), Behavior::kMergedWithNext, /*invert=*/false) {}

  void Apply(Words* words) const override {
    RewriteWords(words, [this](const Word& word, std::string* out) {
      const std::string& replacement = settings_.replacement;
      const bool prepend = settings_.prepend == MetaspaceSettings::Prepend::kAlways ||
                           (settings_.prepend == MetaspaceSettings::Prepend::kFirst && word.at_origin);
      if (prepend && word.text[0] != ' ' && !word.text.starts_with(replacement)) *out += replacement;
      for (const char c : word.text) {
        if (c == ' ') {
          *out += replacement;
        } else {
          *out += c;
        }
      }
    });
    if (settings_.split) split_.Apply(words);
  }

 private:
  MetaspaceSettings settings_;
  SplitByPattern split_;
};

std::unique_ptr<const PreTokenizer> MakeSequence(std::vector<std::unique_ptr<const PreTokenizer>> parts) {
  return std::make_unique<Sequence>(std::move(parts));
}

std::unique_ptr<const PreTokenizer> ParseSplit(const JsonNode& node) {
  node.AllowOnly({"type", "pattern", "behavior", "invert"});
  return std::make_unique<SplitByPattern>(ParsePattern(node.At("pattern")), ParseBehavior(node.At("behavior")),
                                          node.BoolOr("invert", false));
}

std::unique_ptr<const PreTokenizer> ParseByteLevel(const JsonNode& node) {
  // trim_offsets concerns positions in the text, which nobody asks for here.
  node.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  return std::make_unique<ByteLevel>(node.At("add_prefix_space").Bool(), node.BoolOr("use_regex", true), node.place());
}

std::unique_ptr<const PreTokenizer> ParseBert(const JsonNode& node) {
  node.AllowOnly({"type"});
  std::vector<std::unique_ptr<const PreTokenizer>> parts;
  parts.push_back(std::make_unique<SplitByClass>(IsWhitespace, Behavior::kRemoved));
  parts.push_back(std::make_unique<SplitByClass>(IsPunctuation, Behavior::kIsolated));
  return MakeSequence(std::move(parts));
}

}  // namespace

MetaspaceSettings ParseMetaspace(const JsonNode& node) {
  node.AllowOnly({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  MetaspaceSettings settings;
  settings.replacement = node.At("replacement").Character();
  settings.split = node.BoolOr("split", true);
  if (const std::optional<JsonNode> scheme = node.Find("prepend_scheme")) {
    const std::string name = scheme->String();
    if (name == "first") {
      settings.prepend = MetaspaceSettings::Prepend::kFirst;
    } else if (name == "never") {
      settings.prepend = MetaspaceSettings::Prepend::kNever;
    } else if (name != "always") {
      scheme->Unknown("the scheme", name);
    }
  }
  // The older name of "always" and "never".
  if (!node.BoolOr("add_prefix_space", true)) {
    if (node.Find("prepend_scheme") && settings.prepend != MetaspaceSettings::Prepend::kNever) {
      node.Fail(ErrorCode::kBadFile, "\"add_prefix_space\" and \"prepend_scheme\" contradict each other");
    }
    settings.prepend = MetaspaceSettings::Prepend::kNever;
  }
  return settings;
}

std::unique_ptr<const PreTokenizer> ParsePreTokenizer(const JsonNode& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    node.AllowOnly({"type", "pretokenizers"});
    std::vector<std::unique_ptr<const PreTokenizer>> parts;
    for (const JsonNode& part : node.At("pretokenizers").Items()) parts.push_back(ParsePreTokenizer(part));
    return MakeSequence(std::move(parts));
  }
  if (type == "Split") return ParseSplit(node);
  if (type == "ByteLevel") return ParseByteLevel(node);
  if (type == "BertPreTokenizer") return ParseBert(node);
  if (type == "Metaspace") return std::make_unique<Metaspace>(ParseMetaspace(node));
  if (type == "Digits") {
    node.AllowOnly({"type", "individual_digits"});
    return std::make_unique<SplitByClass>(
        IsNumeric, node.At("individual_digits").Bool() ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    node.AllowOnly({"type", "behavior"});
    const std::optional<JsonNode> behavior = node.Find("behavior");
    return std::make_unique<SplitByClass>(IsPunctuation, behavior ? ParseBehavior(*behavior) : Behavior::kIsolated);
  }
  if (type == "CharDelimiterSplit") {
    node.AllowOnly({"type", "delimiter"});
    return std::make_unique<SplitByPattern>(Pattern::Literal(node.At("delimiter").Character()), Behavior::kRemoved,
                                            false);
  }
  node.AllowOnly({"type"});
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<SplitByClass>(IsWhitespace, Behavior::kRemoved);
  node.Unknown("the pre-tokenizer", type);
}

}  // namespace offgraph::llm
