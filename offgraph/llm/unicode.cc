#include "offgraph/llm/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/unicode_late.h"

namespace offgraph::llm {
namespace {

// How many of the bytes at the front of `bytes` are one well-formed sequence (kWhole), a malformed part that becomes
// one U+FFFD (kBroken), or the beginning of a sequence that more bytes might complete (kOpen).
enum class SequenceKind { kWhole, kBroken, kOpen };
struct Sequence {
  SequenceKind kind;
  size_t length;
};

Sequence ReadSequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {SequenceKind::kWhole, 1};
  if (lead < 0xC2 || lead > 0xF4) return {SequenceKind::kBroken, 1};
  const size_t length = Utf8Length(lead);
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {SequenceKind::kOpen, i};
    if (byte(i) < low || byte(i) > high) return {SequenceKind::kBroken, i};
    low = 0x80;
    high = 0xBF;
  }
  return {SequenceKind::kWhole, length};
}

// Length of the well-formed beginning of `bytes`.
size_t ValidPrefix(std::string_view bytes) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Sequence sequence = ReadSequence(bytes.substr(pos));
    if (sequence.kind != SequenceKind::kWhole) break;
    pos += sequence.length;
  }
  return pos;
}

// The general category's two letters. utf8proc has the newest Unicode that the system knows; what came later is ours.
std::string_view Category(char32_t c) {
  const auto point = static_cast<utf8proc_int32_t>(c);
  if (utf8proc_category(point) == UTF8PROC_CATEGORY_CN) {
    if (const LateRange* late = FindLateRange(c)) return late->category;
  }
  return utf8proc_category_string(point);
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Puts each run of combining marks in order of combining class. utf8proc's own reordering is quadratic in such a run.
void SortMarks(std::vector<utf8proc_int32_t>* text) {
  const auto is_starter = [](utf8proc_int32_t c) { return CombiningClass(c) == 0; };
  for (auto begin = text->begin(); begin != text->end();) {
    begin = std::find_if_not(begin, text->end(), is_starter);
    const auto end = std::find_if(begin, text->end(), is_starter);
    std::stable_sort(begin, end,
                     [](utf8proc_int32_t a, utf8proc_int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

struct ByteMap {
  std::array<char32_t, 256> to_character{};
  std::array<int16_t, 0x180> to_byte{};

  constexpr ByteMap() {
    for (int16_t& byte : to_byte) byte = -1;
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t character = printable ? byte : next++;
      to_character[byte] = character;
      to_byte[character] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteMap kByteMap;

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t* pos) {
  const auto lead = static_cast<unsigned char>(text[*pos]);
  const size_t length = std::min(Utf8Length(lead), text.size() - *pos);
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (static_cast<unsigned char>(text[*pos + i]) & 0x3Fu);
  *pos += length;
  return c;
}

char32_t PreviousCodePoint(std::string_view text, size_t* pos) {
  do {
    --*pos;
  } while (*pos > 0 && (static_cast<unsigned char>(text[*pos]) & 0xC0) == 0x80);
  size_t at = *pos;
  return NextCodePoint(text, &at);
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto add = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | (code_point >> 6));
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | (code_point >> 12));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | (code_point >> 18));
    add(0x80 | ((code_point >> 12) & 0x3F));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

bool IsValidUtf8(std::string_view bytes) { return ValidPrefix(bytes) == bytes.size(); }

void Utf8Repair::Push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined.append(bytes);
    pending_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = ValidPrefix(bytes);
    out->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Sequence sequence = ReadSequence(bytes);
    if (sequence.kind == SequenceKind::kOpen) {
      pending_.assign(bytes);
      return;
    }
    AppendUtf8(kReplacementCharacter, out);
    bytes.remove_prefix(sequence.length);
  }
}

void Utf8Repair::Finish(std::string* out) {
  if (!pending_.empty()) AppendUtf8(kReplacementCharacter, out);
  pending_.clear();
}

std::string RepairUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  Utf8Repair repair;
  repair.Push(bytes, &text);
  repair.Finish(&text);
  return text;
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t c) { return Category(c)[0] == 'N'; }

bool IsPunctuation(char32_t c) {
  const std::string_view category = Category(c);
  return category[0] == 'P' || (c < 0x80 && category[0] == 'S');
}

bool IsMark(char32_t c) { return Category(c)[0] == 'M'; }

bool IsNonspacingMark(char32_t c) { return Category(c) == "Mn"; }

bool IsControl(char32_t c) {
  const std::string_view category = Category(c);
  return category == "Cc" || category == "Cf" || category == "Co";
}

bool IsWordCharacter(char32_t c) {
  const std::string_view category = Category(c);
  if (category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" || category == "Pc") return true;
  // Alphabetic outside of L, M and Nl: the circled and squared letters. Then Join_Control.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

std::string Lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (c == 0x130) {  // the one character whose lower case is two: i and a dot above
      lower += "i\xCC\x87";
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &lower);
    }
  }
  return lower;
}

std::string Normalize(NormalForm form, std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(NextCodePoint(text, &pos));
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition, that of U+FDFA, has 18
    int boundary_class = 0;
    const auto count =
        utf8proc_decompose_char(c, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary_class);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
      throw Error(ErrorCode::kInternal,
                  "Unicode normalization failed at code point " + std::to_string(c) + ": " + utf8proc_errmsg(count));
    }
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  SortMarks(&points);
  if (compose) {
    const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                                static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    points.resize(static_cast<size_t>(count));
  }
  std::string result;
  result.reserve(text.size());
  for (const utf8proc_int32_t c : points) AppendUtf8(static_cast<char32_t>(c), &result);
  return result;
}

char32_t ByteToCharacter(unsigned char byte) { return kByteMap.to_character[byte]; }

int CharacterToByte(char32_t c) { return c < kByteMap.to_byte.size() ? kByteMap.to_byte[c] : -1; }

void AppendByteCharacters(std::string_view bytes, std::string* out) {
  out->reserve(out->size() + 2 * bytes.size());
  for (const char byte : bytes) AppendUtf8(ByteToCharacter(static_cast<unsigned char>(byte)), out);
}

}  // namespace offgraph::llm
