#include "offgraph/apps/console.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::apps {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// A byte for each Ctrl-C, so that a wait for input can wait for it as well: a signal that comes just before the wait
// begins, or on another thread, would not end it. -1 where the system grants no pipe.
int wake_read = -1;
int wake_write = -1;

void OnInterrupt(int) {
  if (interrupted != 0) _exit(kExitInterrupted);
  interrupted = 1;
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(wake_write, "", 1);
  errno = error;
}

}  // namespace

void WatchInterrupts() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
    wake_read = ends[0];
    wake_write = ends[1];
  }
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // not SA_RESTART: a wait for input ends
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

void ClearInterrupt() {
  char bytes[16];
  while (read(wake_read, bytes, sizeof(bytes)) > 0) {
  }
  interrupted = 0;
}

bool WaitForInput() {
  std::array<pollfd, 2> waits = {{{STDIN_FILENO, POLLIN, 0}, {wake_read, POLLIN, 0}}};
  while (!Interrupted()) {
    // A descriptor of -1 is passed over.
    if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return true;  // reading says what is wrong
    if (waits[0].revents != 0 && !Interrupted()) return true;
  }
  return false;
}

Progress::Progress(std::string label) : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { Clear(); }

void Progress::Update(int64_t done, int64_t total) {
  constexpr double kDelay = 0.33;
  constexpr double kInterval = 0.1;
  const double now = watch_.seconds();
  if (!enabled_ || total <= 0 || now < kDelay || (shown_ && now - last_draw_ < kInterval && done < total)) return;
  constexpr int64_t kWidth = 30;
  const int64_t filled = std::clamp<int64_t>(kWidth * done / total, 0, kWidth);
  std::string bar;
  for (int64_t i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  std::fprintf(stderr, "\r\033[K%s %s %s/%s", label_.c_str(), bar.c_str(), FormatCount(done).c_str(),
               FormatCount(total).c_str());
  std::fflush(stderr);
  shown_ = true;
  last_draw_ = now;
}

void Progress::Clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

std::string FormatFixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return FormatFixed(bytes, unit == 0 || bytes >= 100 ? 0 : 1) + " " + kUnits[unit];
}

std::string FormatCount(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text;
}

std::string ReadStdin() {
  std::string text;
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t count = read(STDIN_FILENO, block.data(), block.size());
    if (count == 0) return text;
    if (count < 0 && Interrupted()) throw Error(ErrorCode::kCancelled, "cancelled");
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(ErrorCode::kIo, std::string("standard input: ") + std::strerror(errno));
    text.append(block.data(), static_cast<size_t>(count));
  }
}

}  // namespace offgraph::apps
