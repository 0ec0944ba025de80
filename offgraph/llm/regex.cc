#include "offgraph/llm/regex.h"

#include <pcre2.h>

#include <utility>

#include "offgraph/cache/error.h"
#include "offgraph/llm/regex_syntax.h"
#include "offgraph/llm/unicode.h"
#include "offgraph/llm/unicode_late.h"

namespace offgraph::llm {
namespace {

// Steps of backtracking within one search, some tenths of a second. Patterns in use need a few per character of a word.
constexpr uint32_t kMatchLimit = 10'000'000;
// KiB of memory for one search that does not fit the just-in-time compiler's stack.
constexpr uint32_t kHeapLimit = 256 * 1024;
constexpr size_t kLongestPattern = 65'536;

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* pointer) const { kFree(pointer); }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code, pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;

std::string ErrorText(int code) {
  char text[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

Code Compile(const std::string& translated, std::string_view expression, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!code) {
    throw Error(ErrorCode::kBadFile, where + ": the regular expression " + std::string(expression) +
                                         " does not compile: " + ErrorText(error) + " (at byte " +
                                         std::to_string(offset) + " of its translation " + translated + ")");
  }
  // Where the processor or a hardened system has no just-in-time compiler, matching is slower and otherwise the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct Pattern::Compiled {
  Code code;
  Code late_code;  // for texts with late characters; null where the pattern does not care
  MatchContext context;
};

struct MatchFinder::Scratch {
  MatchData data;
  const pcre2_code* code = nullptr;  // for the present text
};

Pattern::Pattern() = default;
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern Pattern::Literal(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

Pattern Pattern::Regex(std::string_view expression, std::string where) {
  if (expression.size() > kLongestPattern) {
    throw Error(ErrorCode::kUnsupported, where + ": a regular expression of " + std::to_string(expression.size()) +
                                             " bytes; at most " + std::to_string(kLongestPattern) + " are supported");
  }
  const std::string translated = TranslateRegex(expression, /*late_characters=*/false, where);
  const std::string with_late = TranslateRegex(expression, /*late_characters=*/true, where);
  Pattern pattern;
  pattern.compiled_ = std::make_unique<Compiled>();
  pattern.compiled_->code = Compile(translated, expression, where);
  if (with_late != translated) pattern.compiled_->late_code = Compile(with_late, expression, where);
  pattern.compiled_->context.reset(pcre2_match_context_create(nullptr));
  if (!pattern.compiled_->context) throw Error(ErrorCode::kOutOfMemory, where + ": no memory for a regular expression");
  pcre2_set_match_limit(pattern.compiled_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(pattern.compiled_->context.get(), kHeapLimit);
  pattern.text_ = std::move(where);
  return pattern;
}

MatchFinder::MatchFinder(const Pattern& pattern) : pattern_(pattern), scratch_(std::make_unique<Scratch>()) {
  if (!pattern.compiled_) return;
  scratch_->data.reset(pcre2_match_data_create(1, nullptr));
  if (!scratch_->data)
    throw Error(ErrorCode::kOutOfMemory, pattern.text_ + ": no memory to match a regular expression");
}

MatchFinder::~MatchFinder() = default;

void MatchFinder::Start(std::string_view text) {
  text_ = text;
  position_ = 0;
  any_ = false;
  if (!pattern_.compiled_) return;
  const Pattern::Compiled& compiled = *pattern_.compiled_;
  scratch_->code = (compiled.late_code && HasLateCharacter(text) ? compiled.late_code : compiled.code).get();
}

bool MatchFinder::Next(Match* match) {
  while (position_ <= text_.size() && Search(position_, match)) {
    position_ = match->end;
    if (match->begin == match->end && any_ && match->end == last_end_) {
      if (position_ >= text_.size()) break;
      NextCodePoint(text_, &position_);
      continue;
    }
    any_ = true;
    last_end_ = match->end;
    return true;
  }
  position_ = text_.size() + 1;
  return false;
}

bool MatchFinder::Search(size_t from, Match* match) {
  if (!pattern_.compiled_) {
    match->begin = text_.find(pattern_.text_, from);
    match->end = match->begin + pattern_.text_.size();
    return match->begin != std::string_view::npos;
  }
  const auto run = [&](uint32_t options) {
    return pcre2_match(scratch_->code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from,
                       options | PCRE2_NO_UTF_CHECK, scratch_->data.get(), pattern_.compiled_->context.get());
  };
  int result = run(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw Error(ErrorCode::kOutOfRange, pattern_.text_ + ": matching the regular expression failed at byte " +
                                            std::to_string(from) + " of a text of " + std::to_string(text_.size()) +
                                            " bytes: " + ErrorText(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch_->data.get());
  *match = {offsets[0], offsets[1]};
  return true;
}

}  // namespace offgraph::llm
