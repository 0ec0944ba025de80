// Text as UTF-8: decoding, repair, character classes and normal forms.
//
// Everything here is a pure function and may be called from any thread. Functions that take "text" expect valid UTF-8
// (RepairUtf8 makes it so); on other bytes they stay inside the buffer and return something, not something useful.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace offgraph::llm {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr char32_t kCodePointEnd = 0x110000;

// Bytes of the UTF-8 sequence that `lead` begins; 1 for a byte that begins none.
constexpr size_t Utf8Length(unsigned char lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// The code point at text[*pos]; moves *pos behind it. REQUIRES: *pos < text.size().
char32_t NextCodePoint(std::string_view text, size_t* pos);
// The code point that ends at text[*pos - 1]; moves *pos to its first byte. REQUIRES: *pos > 0.
char32_t PreviousCodePoint(std::string_view text, size_t* pos);
// REQUIRES: code_point < kCodePointEnd.
void AppendUtf8(char32_t code_point, std::string* out);

bool IsValidUtf8(std::string_view bytes);

// Turns a stream of bytes into valid UTF-8. What is malformed becomes U+FFFD, one for each maximal part of a sequence
// (Unicode 15, section 3.9, table 3-8), as Python's errors="replace" and Rust's from_utf8_lossy do.
class Utf8Repair {
 public:
  // Appends to *out what `bytes` completes. Keeps back an unfinished sequence: at most 3 bytes.
  void Push(std::string_view bytes, std::string* out);
  // Ends the stream: an unfinished sequence becomes one U+FFFD.
  void Finish(std::string* out);

 private:
  std::string pending_;  // a proper prefix of a well-formed sequence, or empty
};

// A whole string through Utf8Repair.
std::string RepairUtf8(std::string_view bytes);

// Unicode White_Space.
bool IsWhitespace(char32_t c);
// General category N (Nd, Nl, No).
bool IsNumeric(char32_t c);
// ASCII punctuation and symbols, and general category P.
bool IsPunctuation(char32_t c);
// General category M (Mn, Mc, Me).
bool IsMark(char32_t c);
// General category Mn.
bool IsNonspacingMark(char32_t c);
// General categories Cc, Cf, Co: controls, formats, private use.
bool IsControl(char32_t c);
// What a regular expression calls \w: Alphabetic, M, Nd, Pc and Join_Control (Unicode UTS #18, annex C).
bool IsWordCharacter(char32_t c);

// Every code point's full lower-case mapping (U+0130 becomes two), with no regard to context: a final sigma is a sigma.
std::string Lowercase(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Unicode normalization (UAX #15). Linear in the text but for sorting runs of combining marks, n log n.
std::string Normalize(NormalForm form, std::string_view text);

// The reversible map of byte-level BPE (GPT-2): each byte stands as one printable code point below U+0180.
char32_t ByteToCharacter(unsigned char byte);
// The byte that `c` stands for, or -1.
int CharacterToByte(char32_t c);
// Every byte of `bytes` as its character, appended.
void AppendByteCharacters(std::string_view bytes, std::string* out);

}  // namespace offgraph::llm
