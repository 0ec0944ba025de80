// A hash map from 64-bit keys to 64-bit values, open addressing in one array. It is built once and then only read; the
// tokenizer asks it several times per character, which is why it is not std::unordered_map (about 3 times slower here).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace offgraph::llm {

class FlatMap {
 public:
  // `expected` is how many keys will come; more are fine.
  explicit FlatMap(size_t expected = 0) { slots_.resize(std::bit_ceil(2 * expected + 2)); }

  // The value of `key`, or nullptr. Valid until the next Insert.
  const uint64_t* Find(uint64_t key) const {
    const Slot& slot = slots_[Position(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

  // Sets the value of `key`, new or not. REQUIRES: key != kNoKey.
  void Insert(uint64_t key, uint64_t value) {
    size_t position = Position(key);
    if (slots_[position].key == kNoKey) {
      if (2 * (size_ + 1) > slots_.size()) {
        Grow();
        position = Position(key);
      }
      ++size_;
    }
    slots_[position] = {key, value};
  }

  size_t size() const { return size_; }

  static constexpr uint64_t kNoKey = ~uint64_t{0};

 private:
  struct Slot {
    uint64_t key = kNoKey;
    uint64_t value = 0;
  };

  // Where `key` is, or the free slot where it would go. At least half of the slots are free, so there is one.
  size_t Position(uint64_t key) const {
    uint64_t hash = key * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    const size_t mask = slots_.size() - 1;
    size_t position = hash & mask;
    while (slots_[position].key != key && slots_[position].key != kNoKey) position = (position + 1) & mask;
    return position;
  }

  void Grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) slots_[Position(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace offgraph::llm
