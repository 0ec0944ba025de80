#include "offgraph/llm/decoder.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "offgraph/llm/normalizer.h"
#include "offgraph/llm/pretokenizer.h"
#include "offgraph/llm/regex.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

// A step that needs each piece as a whole.
class WholePieceStep : public DecodeStep {
 public:
  void Push(const Fragment& fragment) final {
    if (fragment.begins && fragment.ends) return Piece(fragment.text, fragment.literal);
    if (fragment.begins) piece_.clear();
    piece_.append(fragment.text);
    if (fragment.ends) Piece(piece_, fragment.literal);
  }

 protected:
  virtual void Piece(std::string_view text, bool literal) = 0;

 private:
  std::string piece_;
};

// A step that turns all pieces into one.
class JoiningStep : public WholePieceStep {
 public:
  void Finish() override { EmitPart({}, true); }

 protected:
  void EmitPart(std::string_view text, bool last) {
    Emit({text, !begun_, last});
    begun_ = true;
  }

 private:
  bool begun_ = false;
};

class Fuse : public JoiningStep {
  void Piece(std::string_view text, bool /*literal*/) override { EmitPart(text, false); }
};

// A piece made of byte characters stands for these bytes, any other for itself; the bytes of all pieces are UTF-8.
class ByteLevel : public JoiningStep {
 public:
  void Finish() override {
    std::string rest;
    repair_.Finish(&rest);
    EmitPart(rest, true);
  }

 protected:
  void Piece(std::string_view text, bool literal) override {
    std::string bytes;
    for (size_t pos = 0; pos < text.size() && !literal;) {
      const int byte = CharacterToByte(NextCodePoint(text, &pos));
      literal = byte < 0;
      bytes.push_back(static_cast<char>(byte));
    }
    std::string out;
    repair_.Push(literal ? text : std::string_view(bytes), &out);
    EmitPart(out, false);
  }

 private:
  Utf8Repair repair_;
};

// A run of pieces <0x00> ... <0xFF> is UTF-8; where it is not, every byte of the run becomes U+FFFD. So the run can
// only be judged when it has ended, and is kept back until then.
class ByteFallback : public WholePieceStep {
 public:
  void Finish() override { EndRun(); }

 protected:
  void Piece(std::string_view text, bool literal) override {
    if (const std::optional<char> byte = ByteOf(text)) {
      run_.push_back(*byte);
      return;
    }
    EndRun();
    Emit({text, true, true, literal});
  }

 private:
  static std::optional<char> ByteOf(std::string_view text) {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : text.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = 16 * value + digit;
    }
    return static_cast<char>(value);
  }

  void EndRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      Emit({run_});
    } else {
      std::string replacement;
      AppendUtf8(kReplacementCharacter, &replacement);
      for (size_t i = 0; i < run_.size(); ++i) Emit({replacement});
    }
    run_.clear();
  }

  std::string run_;
};

// Takes up to `start` characters `content` off the front of each piece, and up to `stop` off its end.
class Strip : public DecodeStep {
 public:
  Strip(std::string content, size_t start, size_t stop) : content_(std::move(content)), start_(start), stop_(stop) {}

  void Push(const Fragment& fragment) override {
    if (fragment.begins) {
      to_strip_ = start_;
      kept_back_ = 0;
    }
    std::string_view text = fragment.text;
    while (to_strip_ > 0 && text.starts_with(content_)) {
      text.remove_prefix(content_.size());
      --to_strip_;
    }
    if (!text.empty()) to_strip_ = 0;
    // The last characters that may yet turn out to be the end are kept back.
    size_t trailing = 0;
    while (trailing < stop_ && text.ends_with(content_)) {
      text.remove_suffix(content_.size());
      ++trailing;
    }
    std::string out;
    const size_t earlier = text.empty() ? kept_back_ - std::min(kept_back_, stop_ - trailing) : kept_back_;
    for (size_t i = 0; i < earlier; ++i) out += content_;
    out.append(text);
    kept_back_ = kept_back_ - earlier + trailing;
    Emit({out, fragment.begins, fragment.ends, fragment.literal});
  }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t to_strip_ = 0;
  size_t kept_back_ = 0;  // characters `content` at the end of the piece so far that were not emitted; at most stop_
};

class ReplaceLiteral : public DecodeStep {
 public:
  ReplaceLiteral(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Push(const Fragment& fragment) override {
    const std::string& from = *pattern_->literal();
    if (fragment.begins) kept_back_.clear();
    kept_back_.append(fragment.text);
    std::string out;
    size_t copied = 0;
    for (size_t found; (found = kept_back_.find(from, copied)) != std::string::npos; copied = found + from.size()) {
      out.append(kept_back_, copied, found - copied).append(content_);
    }
    // A beginning of the pattern at the end of an unfinished piece may become a match.
    size_t keep = fragment.ends ? 0 : std::min(kept_back_.size() - copied, from.size() - 1);
    while (keep > 0 && !from.starts_with(std::string_view(kept_back_).substr(kept_back_.size() - keep))) --keep;
    out.append(kept_back_, copied, kept_back_.size() - keep - copied);
    kept_back_.erase(0, kept_back_.size() - keep);
    Emit({out, fragment.begins, fragment.ends, fragment.literal});
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
  std::string kept_back_;
};

class ReplaceRegex : public WholePieceStep {
 public:
  ReplaceRegex(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  void Piece(std::string_view text, bool literal) override {
    MatchFinder finder(*pattern_);
    finder.Start(text);
    std::string out;
    size_t copied = 0;
    for (Match match; finder.Next(&match); copied = match.end) {
      out.append(text.substr(copied, match.begin - copied)).append(content_);
    }
    out.append(text.substr(copied));
    Emit({out, true, true, literal});
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

// Turns Metaspace's character back into a space; in the first piece, where one was put in front, into nothing.
class Metaspace : public DecodeStep {
 public:
  explicit Metaspace(MetaspaceSettings settings) : settings_(std::move(settings)) {}

  void Push(const Fragment& fragment) override {
    const bool drop = first_ && settings_.prepend != MetaspaceSettings::Prepend::kNever;
    std::string out;
    for (size_t pos = 0; pos < fragment.text.size();) {
      const size_t begin = pos;
      NextCodePoint(fragment.text, &pos);
      const std::string_view character = fragment.text.substr(begin, pos - begin);
      if (character != settings_.replacement) {
        out.append(character);
      } else if (!drop) {
        out += ' ';
      }
    }
    Emit({out, fragment.begins, fragment.ends, fragment.literal});
    if (fragment.ends) first_ = false;
  }

 private:
  MetaspaceSettings settings_;
  bool first_ = true;
};

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t copied = 0;
  for (size_t found; (found = text.find(from, copied)) != std::string_view::npos; copied = found + from.size()) {
    result.append(text.substr(copied, found - copied)).append(to);
  }
  return result.append(text.substr(copied));
}

// The suffix that ends a word becomes a space, but not in the last piece: a piece waits for the next one.
class BpeSuffix : public WholePieceStep {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void Finish() override { EmitWaiting(""); }

 protected:
  void Piece(std::string_view text, bool /*literal*/) override {
    EmitWaiting(" ");
    waiting_ = std::string(text);
  }

 private:
  void EmitWaiting(std::string_view replacement) {
    if (!waiting_) return;
    const std::string out = ReplaceAll(*waiting_, suffix_, replacement);
    Emit({out});
  }

  std::string suffix_;
  std::optional<std::string> waiting_;
};

// A piece with the prefix continues the word before it; any other begins a new one, after a space.
class WordPiece : public WholePieceStep {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}

 protected:
  void Piece(std::string_view text, bool literal) override {
    std::string out;
    if (first_) {
      out = text;
    } else if (text.starts_with(prefix_)) {
      out = text.substr(prefix_.size());
    } else {
      out.append(" ").append(text);
    }
    first_ = false;
    if (cleanup_) {
      constexpr std::pair<std::string_view, std::string_view> kEnglish[] = {
          {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
          {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
      for (const auto& [from, to] : kEnglish) out = ReplaceAll(out, from, to);
    }
    Emit({out, true, true, literal});
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

class SpaceBetween : public WholePieceStep {
  void Piece(std::string_view text, bool literal) override {
    std::string out;
    if (!first_) out.push_back(' ');
    out.append(text);
    first_ = false;
    Emit({out, true, true, literal});
  }
  bool first_ = true;
};

std::string NonEmpty(const JsonNode& node) {
  std::string text = node.String();
  if (text.empty()) node.Fail(ErrorCode::kUnsupported, "an empty string is not supported here");
  return text;
}

}  // namespace

Decoder::Decoder() {
  factories_.emplace_back([] { return std::make_unique<SpaceBetween>(); });
}

Decoder::Decoder(const JsonNode& node) { Parse(node); }

void Decoder::Parse(const JsonNode& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    node.AllowOnly({"type", "decoders"});
    for (const JsonNode& part : node.At("decoders").Items()) Parse(part);
  } else if (type == "ByteLevel") {
    node.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // none concerns decoding
    factories_.emplace_back([] { return std::make_unique<ByteLevel>(); });
  } else if (type == "ByteFallback") {
    node.AllowOnly({"type"});
    factories_.emplace_back([] { return std::make_unique<ByteFallback>(); });
  } else if (type == "Fuse") {
    node.AllowOnly({"type"});
    factories_.emplace_back([] { return std::make_unique<Fuse>(); });
  } else if (type == "Strip") {
    node.AllowOnly({"type", "content", "start", "stop"});
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const auto start = static_cast<size_t>(node.At("start").Integer(kMost));
    const auto stop = static_cast<size_t>(node.At("stop").Integer(kMost));
    factories_.emplace_back([content = node.At("content").Character(), start, stop] {
      return std::make_unique<Strip>(content, start, stop);
    });
  } else if (type == "Replace") {
    node.AllowOnly({"type", "pattern", "content"});
    const auto pattern = std::make_shared<const Pattern>(ParsePattern(node.At("pattern")));
    factories_.emplace_back([pattern, content = node.At("content").String()]() -> std::unique_ptr<DecodeStep> {
      if (pattern->literal() != nullptr) return std::make_unique<ReplaceLiteral>(pattern, content);
      return std::make_unique<ReplaceRegex>(pattern, content);
    });
  } else if (type == "Metaspace") {
    factories_.emplace_back([settings = ParseMetaspace(node)] { return std::make_unique<Metaspace>(settings); });
  } else if (type == "BPEDecoder") {
    node.AllowOnly({"type", "suffix"});
    factories_.emplace_back([suffix = NonEmpty(node.At("suffix"))] { return std::make_unique<BpeSuffix>(suffix); });
  } else if (type == "WordPiece") {
    node.AllowOnly({"type", "prefix", "cleanup"});
    factories_.emplace_back([prefix = node.At("prefix").String(), cleanup = node.At("cleanup").Bool()] {
      return std::make_unique<WordPiece>(prefix, cleanup);
    });
  } else {
    node.Unknown("the decoder", type);
  }
}

std::vector<std::unique_ptr<DecodeStep>> Decoder::MakeSteps() const {
  std::vector<std::unique_ptr<DecodeStep>> steps;
  for (const Factory& make : factories_) steps.push_back(make());
  return steps;
}

DecodeStream::DecodeStream(const Decoder& decoder) : steps_(decoder.MakeSteps()) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->SetOutput(i + 1 < steps_.size() ? steps_[i + 1].get() : nullptr, &text_);
  }
}

void DecodeStream::Push(std::string_view token, bool literal, std::string* out) {
  if (steps_.empty()) {
    out->append(token);
    return;
  }
  text_.clear();
  steps_[0]->Push({token, true, true, literal});
  out->append(text_);
}

void DecodeStream::Finish(std::string* out) {
  text_.clear();
  for (const auto& step : steps_) step->Finish();
  out->append(text_);
}

}  // namespace offgraph::llm
