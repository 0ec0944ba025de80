#include "offgraph/llm/vocabulary.h"

#include <algorithm>
#include <functional>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {
constexpr size_t kFirstSlots = 1024;  // a power of two
}

Vocabulary::Vocabulary() : slots_(kFirstSlots) {}

size_t Vocabulary::Position(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t position = std::hash<std::string_view>{}(token)&mask;
  while (slots_[position] != 0 && Text(entries_[slots_[position] - 1]) != token) position = (position + 1) & mask;
  return position;
}

void Vocabulary::Rehash(size_t slots) {
  slots_.assign(slots, 0);
  for (size_t i = 0; i < entries_.size(); ++i) slots_[Position(Text(entries_[i]))] = static_cast<uint32_t>(i + 1);
}

void Vocabulary::Add(std::string_view token, int32_t id) {
  size_t position = Position(token);
  if (slots_[position] != 0) {
    entries_[slots_[position] - 1].id = id;
    return;
  }
  if (2 * (entries_.size() + 1) > slots_.size()) {
    Rehash(4 * slots_.size());
    position = Position(token);
  }
  entries_.push_back({text_.size(), static_cast<uint32_t>(token.size()), id});
  text_.append(token);
  slots_[position] = static_cast<uint32_t>(entries_.size());
}

void Vocabulary::Finish(const std::string& where) {
  const auto by_id = [](const Entry& a, const Entry& b) { return a.id < b.id; };
  if (!std::is_sorted(entries_.begin(), entries_.end(), by_id)) {
    std::sort(entries_.begin(), entries_.end(), by_id);
    Rehash(slots_.size());
  }
  const auto twin =
      std::adjacent_find(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.id == b.id; });
  if (twin != entries_.end()) {
    throw Error(ErrorCode::kBadFile, where + ": tokens \"" + std::string(Text(twin[0])) + "\" and \"" +
                                         std::string(Text(twin[1])) + "\" share the id " + std::to_string(twin->id));
  }
}

std::optional<int32_t> Vocabulary::Find(std::string_view token) const {
  const uint32_t slot = slots_[Position(token)];
  if (slot == 0) return std::nullopt;
  return entries_[slot - 1].id;
}

std::optional<std::string_view> Vocabulary::Token(int32_t id) const {
  if (id < 0) return std::nullopt;
  const auto index = static_cast<size_t>(id);
  // Nearly every vocabulary has the ids 0, 1, 2, ...
  if (index < entries_.size() && entries_[index].id == id) return Text(entries_[index]);
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), id,
                                      [](const Entry& entry, int32_t value) { return entry.id < value; });
  if (found == entries_.end() || found->id != id) return std::nullopt;
  return Text(*found);
}

}  // namespace offgraph::llm
