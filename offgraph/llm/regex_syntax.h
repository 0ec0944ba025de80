// From the regular expressions of tokenizer.json to PCRE2's.
//
// The reference reads them with Oniguruma in its Ruby syntax. Most means the same in both; this translates what does
// not, and refuses what has no equal here, so that no pattern ever means something else than it was written for.
//
//   Oniguruma                              here
//   \s \S \w \W                            spelled out as sets: PCRE2 counts U+180E as space, and no marks as letters
//   \b \B                                  look-arounds with that \w
//   \p{Han} (a script)                     \p{sc:Han}: PCRE2 would take script extensions
//   \p{L}, \p{Letter}, \p{^L}, \P{L}       the general category by its short name
//   \v, \uHHHH                             \x0B, \x{HHHH}
//   x{,n}  x{n}?  x{n,m}+                  x{0,n}  (?:x{n})?  (?:x{n,m})+
//   ^ $                                    at every line, as PCRE2_MULTILINE has it
//
// Refused: nested sets and && in [...], POSIX brackets, [\W], back references, \h \H \R \X \K \G \N, named groups,
// inline options other than i, and i only as (?i:...) or at the very beginning.
#pragma once

#include <string>
#include <string_view>

namespace offgraph::llm {

// With `late_characters`, categories also have the characters that PCRE2 does not know (unicode_late.h), at half the
// speed. Throws Error(kUnsupported), naming the construct and its position; the message begins with `where`.
std::string TranslateRegex(std::string_view pattern, bool late_characters, const std::string& where);

}  // namespace offgraph::llm
