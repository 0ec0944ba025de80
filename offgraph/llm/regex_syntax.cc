#include "offgraph/llm/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/unicode.h"
#include "offgraph/llm/unicode_late.h"

namespace offgraph::llm {
namespace {

// The contents of sets, to stand between brackets.
constexpr std::string_view kSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{00}-\x{08}\x{0E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// Alphabetic, M, Nd and Pc, and, since they are below U+0100, the superscripts and fractions there.
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

// Long names of general categories, as properties are compared: without case, spaces, '-' and '_'.
constexpr std::array<std::pair<std::string_view, std::string_view>, 37> kCategories = {{
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
}};

std::string PropertyKey(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') key.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return key;
}

std::string InSet(std::string_view contents, bool negated) {
  return std::string(negated ? "[^" : "[").append(contents).append("]");
}

bool IsAsciiAlphanumeric(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

class Translator {
 public:
  Translator(std::string_view pattern, bool late_characters, const std::string& where)
      : pattern_(pattern), late_characters_(late_characters), where_(where) {}

  std::string Run() {
    if (Skip("(?i)")) out_ += "(?i)";
    while (pos_ < pattern_.size()) Element();
    return std::move(out_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what, size_t at) const {
    throw Error(ErrorCode::kUnsupported, where_ + ": the regular expression " + std::string(pattern_) + " has " + what +
                                             " at byte " + std::to_string(at) + ", which offgraph does not support");
  }

  char Peek(size_t ahead = 0) const { return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0'; }

  bool Skip(std::string_view text) {
    if (pattern_.substr(pos_, text.size()) != text) return false;
    pos_ += text.size();
    return true;
  }

  // One atom, group border, anchor or quantifier.
  void Element() {
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?') {
      Quantifier();
    } else if (c == '{') {
      Interval();
    } else if (c == '(') {
      OpenGroup();
    } else if (c == ')') {
      out_ += pattern_[pos_++];
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
    } else {
      atom_ = out_.size();
      if (c == '[') {
        Set();
      } else if (c == '\\') {
        Escape(/*in_set=*/false);
      } else {
        CopyCharacter();
      }
    }
  }

  void CopyCharacter() {
    const size_t begin = pos_;
    NextCodePoint(pattern_, &pos_);
    out_.append(pattern_.substr(begin, pos_ - begin));
  }

  void Quantifier() {
    out_ += pattern_[pos_++];
    // ? makes it lazy and + possessive, in both syntaxes.
    if (Peek() == '?' || Peek() == '+') out_ += pattern_[pos_++];
  }

  // {n} {n,} {n,m} {,m}; anything else is a brace that stands for itself.
  void Interval() {
    size_t end = pos_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0) ++end;
      return std::string(pattern_.substr(begin, end - begin));
    };
    std::string least = digits();
    bool range = false;
    std::string most;
    if (end < pattern_.size() && pattern_[end] == ',') {
      range = true;
      ++end;
      most = digits();
    }
    if (end >= pattern_.size() || pattern_[end] != '}' || (least.empty() && most.empty())) {
      atom_ = out_.size();
      out_ += "\\{";
      ++pos_;
      return;
    }
    pos_ = end + 1;
    if (least.empty()) least.push_back('0');
    out_.append("{").append(least).append(range ? "," : "").append(most).append("}");
    if (Peek() == '?' && range) {
      out_ += pattern_[pos_++];
    } else if (Peek() == '?' || Peek() == '+') {
      // A quantifier of its own, on the repeated atom.
      out_.insert(atom_, "(?:");
      out_ += ")";
      Quantifier();
    }
  }

  void OpenGroup() {
    groups_.push_back(out_.size());
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (Skip(opening)) {
        out_ += opening;
        return;
      }
    }
    if (Peek(1) == '?') Refuse(std::string("a group \"").append(pattern_.substr(pos_, 4)).append("\""), pos_);
    ++pos_;
    out_ += "(?:";  // captures are of no use here
  }

  void Set() {
    const size_t begin = pos_;
    out_ += pattern_[pos_++];
    if (Peek() == '^') out_ += pattern_[pos_++];
    if (Peek() == ']') {
      out_ += "\\]";
      ++pos_;
    }
    while (Peek() != ']' || pos_ >= pattern_.size()) {
      if (pos_ >= pattern_.size()) {
        throw Error(ErrorCode::kBadFile, where_ + ": the regular expression " + std::string(pattern_) +
                                             " has a '[' without ']' at byte " + std::to_string(begin));
      }
      if (Peek() == '[') Refuse("a set within a set", pos_);
      if (Peek() == '&' && Peek(1) == '&') Refuse("an intersection of sets (&&)", pos_);
      if (Peek() == '\\') {
        Escape(/*in_set=*/true);
      } else {
        CopyCharacter();
      }
    }
    out_ += pattern_[pos_++];
  }

  void Escape(bool in_set) {
    const size_t begin = pos_++;
    if (pos_ >= pattern_.size()) {
      throw Error(ErrorCode::kBadFile,
                  where_ + ": the regular expression " + std::string(pattern_) + " ends within an escape");
    }
    const char c = Peek();
    if (!IsAsciiAlphanumeric(c)) {  // a character that stands for itself
      out_ += '\\';
      CopyCharacter();
      return;
    }
    ++pos_;
    const auto set = [&](std::string_view contents, bool negated) {
      if (!in_set) {
        out_ += InSet(contents, negated);
      } else if (!negated) {
        out_ += contents;
      } else {
        Refuse(std::string("\\") + c + " in a set", begin);
      }
    };
    switch (c) {
      case 's':
        return set(kSpace, false);
      case 'S':
        return set(kNotSpace, false);
      case 'w':
        return set(Word(), false);
      case 'W':
        return set(Word(), true);
      case 'p':
      case 'P':
        return Property(c == 'P', in_set, begin);
      case 'v':
        out_ += "\\x0B";
        return;
      case 'x':
      case 'u':
        return Hexadecimal(c, begin);
      case 'b':
        if (in_set) {
          out_ += "\\x08";
        } else {
          Boundary(true);
        }
        return;
      case 'B':
        if (in_set) break;
        return Boundary(false);
      case 'A':
      case 'z':
      case 'Z':
        if (in_set) break;
        [[fallthrough]];
      case 'd':
      case 'D':
      case 'a':
      case 'e':
      case 'f':
      case 'n':
      case 'r':
      case 't':
        out_ += {'\\', c};
        return;
      default:
        break;
    }
    Refuse(std::string("the escape \\") + c, begin);
  }

  std::string Word() const {
    std::string word(kWord);
    if (late_characters_) {
      for (const std::string_view category : {"L", "M", "Nd", "Nl", "Pc"}) word += LateSet(category);
    }
    return word;
  }

  // A place between a word character and another, or (not is_boundary) any other place.
  void Boundary(bool is_boundary) {
    const auto look = [this](std::string_view opening) {
      out_.append(opening).append("[").append(Word()).append("])");
    };
    out_ += "(?:";
    look("(?<=");
    look(is_boundary ? "(?!" : "(?=");
    out_ += "|";
    look("(?<!");
    look(is_boundary ? "(?=" : "(?!");
    out_ += ")";
  }

  void Hexadecimal(char kind, size_t begin) {
    const bool braces = kind == 'x' && Peek() == '{';
    if (braces) ++pos_;
    const size_t most = braces ? 8 : kind == 'x' ? 2 : 4;
    std::string digits;
    while (digits.size() < most && std::isxdigit(static_cast<unsigned char>(Peek())) != 0) digits += pattern_[pos_++];
    const bool whole = braces ? Peek() == '}' : kind == 'x' || digits.size() == most;
    if (digits.empty() || !whole) Refuse(std::string("an unfinished \\") + kind, begin);
    if (braces) ++pos_;
    out_.append("\\x{").append(digits).append("}");
  }

  void Property(bool negated, bool in_set, size_t begin) {
    const size_t end = pattern_.find('}', pos_);
    if (Peek() != '{' || end == std::string_view::npos) Refuse("\\p without {name}", begin);
    std::string_view name = pattern_.substr(pos_ + 1, end - pos_ - 1);
    pos_ = end + 1;
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](char c) {
          return IsAsciiAlphanumeric(c) || c == '_' || c == ' ' || c == '-';
        })) {
      Refuse("a property with an unknown name", begin);
    }
    const std::string key = PropertyKey(name);
    const auto category = std::find_if(kCategories.begin(), kCategories.end(), [&](const auto& entry) {
      return entry.first == key || PropertyKey(entry.second) == key;
    });
    std::string property = "sc:";
    std::string late;
    if (category != kCategories.end()) {
      property = category->second;
      if (late_characters_) late = LateSet(property);
    } else {
      property.append(name);
    }
    // In a set, the complement of a category cannot be had without its late characters; no pattern in use asks.
    if (late.empty() || (in_set && negated)) {
      out_.append(negated ? "\\P{" : "\\p{").append(property).append("}");
    } else {
      const std::string contents = std::string("\\p{").append(property).append("}").append(late);
      out_ += in_set ? contents : InSet(contents, negated);
    }
  }

  std::string_view pattern_;
  bool late_characters_;
  const std::string& where_;
  std::string out_;
  size_t pos_ = 0;
  size_t atom_ = 0;             // where in out_ the atom begins that a quantifier would repeat
  std::vector<size_t> groups_;  // where in out_ the open groups begin
};

}  // namespace

std::string TranslateRegex(std::string_view pattern, bool late_characters, const std::string& where) {
  return Translator(pattern, late_characters, where).Run();
}

}  // namespace offgraph::llm
