// What the commands share on a terminal: Ctrl-C, progress, and sizes and rates as people read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace offgraph::apps {

// Takes over Ctrl-C (SIGINT) for the life of the process: the first one sets a flag that long work looks at, a second
// one while the flag is still set ends the process with exit code 130.
void WatchInterrupts();
bool Interrupted();
void ClearInterrupt();
// Waits until standard input has something to read, or is at its end. False: Ctrl-C came first.
bool WaitForInput();

// Exit code of a command that Ctrl-C ended, as shells have it: 128 + SIGINT.
inline constexpr int kExitInterrupted = 130;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A bar on stderr that shows how far long work has come; nothing where stderr is not a terminal, and nothing for work
// that is done within a third of a second. The bar is gone once the object is.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(int64_t done, int64_t total);
  void Clear();

 private:
  std::string label_;
  bool enabled_;
  bool shown_ = false;
  Stopwatch watch_;
  double last_draw_ = 0;
};

// "1.4 GiB", "512 B".
std::string FormatBytes(double bytes);
// `value` with `decimals` digits behind the point.
std::string FormatFixed(double value, int decimals);
// 1234567 -> "1,234,567".
std::string FormatCount(int64_t value);

// Text from a file, made safe for a terminal: control characters become '?'.
std::string Printable(std::string text);

// All of stdin. Throws Error(kIo), or Error(kCancelled) on Ctrl-C.
std::string ReadStdin();

}  // namespace offgraph::apps
