#include "offgraph/llm/stop.h"

#include <deque>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::llm {

StopMatcher::StopMatcher(std::span<const std::string> stop_strings) {
  size_t total = 0;
  for (const std::string& text : stop_strings) {
    if (text.empty()) throw Error(ErrorCode::kInvalidArgument, "a stop string is empty; it would stop everything");
    total += text.size();
    lengths_.push_back(text.size());
  }
  if (total > kMaxBytes) {
    throw Error(ErrorCode::kInvalidArgument, "the stop strings have " + std::to_string(total) +
                                                 " bytes together; at most " + std::to_string(kMaxBytes) +
                                                 " are possible");
  }
  nodes_.emplace_back().next.fill(kNone);
  for (size_t i = 0; i < stop_strings.size(); ++i) Insert(stop_strings[i], static_cast<int32_t>(i));
  Complete();
}

void StopMatcher::Insert(std::string_view text, int32_t index) {
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = nodes_[static_cast<size_t>(node)].next[byte];
    if (next == kNone) {
      next = static_cast<int32_t>(nodes_.size());
      Node& added = nodes_.emplace_back();
      added.next.fill(kNone);
      added.depth = nodes_[static_cast<size_t>(node)].depth + 1;
      nodes_[static_cast<size_t>(node)].next[byte] = next;
    }
    node = next;
  }
  int32_t& found = nodes_[static_cast<size_t>(node)].found;
  if (found == kNone) found = index;
}

// Breadth first: a node's fallback is shorter than the node, so it is complete before it is needed.
void StopMatcher::Complete() {
  std::deque<int32_t> queue = {0};
  while (!queue.empty()) {
    const int32_t index = queue.front();
    queue.pop_front();
    Node& node = nodes_[static_cast<size_t>(index)];
    const Node& fallback = nodes_[static_cast<size_t>(node.fallback)];
    if (node.found == kNone) node.found = fallback.found;
    for (size_t byte = 0; byte < node.next.size(); ++byte) {
      const int32_t beyond = index == 0 ? 0 : fallback.next[byte];
      if (node.next[byte] == kNone) {
        node.next[byte] = beyond;
      } else {
        nodes_[static_cast<size_t>(node.next[byte])].fallback = beyond;
        queue.push_back(node.next[byte]);
      }
    }
  }
}

std::string StopMatcher::Feed(std::string_view piece) {
  if (stopped_by_) return {};
  std::string text = std::move(withheld_);
  withheld_.clear();
  for (const char c : piece) {
    text += c;
    state_ = nodes_[static_cast<size_t>(state_)].next[static_cast<unsigned char>(c)];
    const int32_t found = nodes_[static_cast<size_t>(state_)].found;
    if (found == kNone) continue;
    stopped_by_ = static_cast<size_t>(found);
    text.resize(text.size() - lengths_[*stopped_by_]);
    return text;
  }
  const auto safe = text.size() - static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
  withheld_ = text.substr(safe);
  text.resize(safe);
  return text;
}

std::string StopMatcher::Finish() {
  state_ = 0;
  return std::exchange(withheld_, {});
}

void StopMatcher::Reset() {
  state_ = 0;
  withheld_.clear();
  stopped_by_.reset();
}

}  // namespace offgraph::llm
