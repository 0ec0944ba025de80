// Whether a sanitizer watches, under which everything takes many times as long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace offgraph::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// From one to the next of about `sample` places, a fifth of that under a sanitizer, evenly among `places`.
inline int64_t Stride(int64_t places, int64_t sample) {
  return std::max<int64_t>(1, places / (kSanitized ? sample / 5 : sample));
}

}  // namespace offgraph::testing
