#include "offgraph/llm/session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

int64_t Window(int64_t of_model, const std::optional<int64_t>& imposed) {
  if (!imposed || *imposed == 0) return imposed ? 0 : of_model;
  return of_model == 0 ? *imposed : std::min(of_model, *imposed);
}

void CheckNotNegative(const char* what, int64_t value) {
  if (value < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " is " + std::to_string(value) + "; it must not be negative");
  }
}

program::CacheOptions RunnerOptions(const ModelInfo& info, const CacheOptions& options) {
  CheckNotNegative("the capacity", options.capacity);
  CheckNotNegative("the window", options.window.value_or(0));
  CheckNotNegative("the number of sinks", options.sinks);
  CheckNotNegative("the longest step", options.max_step);
  CheckNotNegative("the limit on a step's memory", options.step_memory_limit);
  program::CacheOptions result;
  result.kv_type = options.kv_type;
  result.initial_capacity = options.initial_capacity;
  result.memory_limit = options.memory_limit;
  result.step_memory_limit = options.step_memory_limit;
  result.cache.capacity = options.capacity > 0 ? options.capacity : info.max_context;
  result.cache.max_step = options.max_step > 0 ? options.max_step : info.prefill_chunk;
  result.cache.rewind_reserve = options.rewind_reserve;
  if (!info.off_graph) {
    if (options.window || options.sinks > 0 || options.kv_type != "same") {
      throw Error(ErrorCode::kUnsupported, info.name +
                                               ": its cache is inside the graph, so that its window, sinks and storage "
                                               "type cannot be chosen; export it with --use-offgraph-cache");
    }
    if (result.cache.capacity > info.max_context) {
      throw Error(ErrorCode::kUnsupported, info.name + ": its cache is inside the graph and holds " +
                                               std::to_string(info.max_context) + " tokens, not " +
                                               std::to_string(result.cache.capacity) +
                                               "; export it with --use-offgraph-cache");
    }
    return result;
  }
  result.cache.n_layers = info.n_caches;
  result.cache.layers.clear();
  bool windowed = false;
  for (const int64_t of_model : info.windows) {
    const int64_t window = Window(of_model, options.window);
    result.cache.layers.push_back({window, window > 0 ? options.sinks : 0});
    windowed = windowed || window > 0;
  }
  if (options.sinks > 0 && !windowed) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(options.sinks) + " sinks were asked for, and no layer has a window; give a window too");
  }
  return result;
}

}  // namespace

CacheSize SizeOfCache(const ModelInfo& info, const CacheOptions& options) {
  const program::CacheOptions made = RunnerOptions(info, options);
  const cache::SequenceCache layout(made.cache);
  const std::string type = made.kv_type == "same" ? info.logits_type : made.kv_type;
  const int64_t element = type == "fp32" ? 4 : 2;
  CacheSize size = {0, type};
  for (int64_t layer = 0; layer < info.n_caches; ++layer) {
    const auto at = static_cast<size_t>(layer);
    int64_t bytes = 2 * element;
    for (const int64_t factor : {layout.MaxRows(layer), info.kv_heads[at], info.head_dims[at]}) {
      if (__builtin_mul_overflow(bytes, factor, &bytes)) bytes = -1;
    }
    if (bytes < 0 || __builtin_add_overflow(size.bytes, bytes, &size.bytes)) {
      throw Error(ErrorCode::kBadFile,
                  info.name + ": cache " + std::to_string(layer) + " of " + std::to_string(layout.MaxRows(layer)) +
                      " rows, " + std::to_string(info.kv_heads[at]) + " heads (get_kv_heads) of size " +
                      std::to_string(info.head_dims[at]) + " (get_head_dims) has more bytes than can be counted");
    }
  }
  return size;
}

Session::Session(std::shared_ptr<const Model> model, const CacheOptions& options)
    : model_(std::move(model)),
      runner_(model_->program(), RunnerOptions(model_->info(), options)),
      chunk_(options.max_step > 0 ? options.max_step : model_->info().prefill_chunk) {}

Session::~Session() = default;

const Model& Session::model() const { return *model_; }

const std::vector<TokenId>& Session::tokens() const { return tokens_; }

int64_t Session::capacity() const { return runner_.capacity(); }

int64_t Session::cached() const { return runner_.length(); }

program::CacheMemory Session::memory() const { return runner_.memory(); }

const SessionStats& Session::stats() const { return stats_; }

void Session::Append(std::span<const TokenId> tokens, const StepControl& control) {
  if (tokens.empty()) return;
  Check(tokens, static_cast<int64_t>(tokens_.size() + tokens.size()));
  std::vector<TokenId> next;
  next.reserve(tokens_.size() + tokens.size());
  next = tokens_;
  next.insert(next.end(), tokens.begin(), tokens.end());
  Compute(std::move(next), cached(), control);
}

void Session::Push(TokenId token) {
  Check({&token, 1}, static_cast<int64_t>(tokens_.size()) + 1);
  tokens_.push_back(token);
  logits_.clear();
}

int64_t Session::SetTokens(std::span<const TokenId> tokens, const StepControl& control) {
  if (tokens.empty()) throw Error(ErrorCode::kInvalidArgument, "a sequence needs at least one token");
  Check(tokens, static_cast<int64_t>(tokens.size()));
  if (std::ranges::equal(tokens, tokens_) && !logits_.empty()) {
    stats_.reused += static_cast<int64_t>(tokens.size());
    return static_cast<int64_t>(tokens.size());
  }
  const auto known = std::span(tokens_).first(static_cast<size_t>(cached()));
  const auto [end, unused] = std::ranges::mismatch(tokens, known);
  // The last token is computed in any case: its logits are wanted.
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t common = std::min<int64_t>(std::distance(tokens.begin(), end), last);
  const int64_t computed_before = stats_.computed;
  Compute({tokens.begin(), tokens.end()}, common, control);
  const int64_t kept = static_cast<int64_t>(tokens.size()) - (stats_.computed - computed_before);
  stats_.reused += kept;
  return kept;
}

void Session::Truncate(int64_t length) {
  const auto size = static_cast<int64_t>(tokens_.size());
  if (length < 0 || length > size) {
    throw Error(ErrorCode::kInvalidArgument,
                "cannot keep " + std::to_string(length) + " tokens of a sequence of " + std::to_string(size));
  }
  if (length == size) return;
  ForgetFrom(length);
  tokens_.resize(static_cast<size_t>(length));
  logits_.clear();
}

std::span<const float> Session::Logits(const StepControl& control) {
  if (tokens_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "an empty sequence has no logits; append the beginning-of-sequence token");
  }
  if (logits_.empty()) Compute(tokens_, std::min(cached(), static_cast<int64_t>(tokens_.size()) - 1), control);
  return logits_;
}

// What Append, Push and SetTokens refuse before anything is computed.
void Session::Check(std::span<const TokenId> added, int64_t total) const {
  if (total > capacity()) {
    throw Error(ErrorCode::kOutOfRange, "the text has " + std::to_string(total) + " tokens, and the cache holds " +
                                            std::to_string(capacity()) + "; shorten it or raise the capacity");
  }
  const int64_t vocab = model_->info().vocab;
  for (const TokenId id : added) {
    if (id < 0 || (vocab > 0 && id >= vocab)) {
      throw Error(ErrorCode::kInvalidArgument, "token " + std::to_string(id) +
                                                   " is outside the model's vocabulary of " + std::to_string(vocab) +
                                                   ": the tokenizer belongs to another model");
    }
  }
}

namespace {
// Shows every row of `logits` [rows, vocab], and keeps the last one.
void KeepLastRow(std::vector<float>* logits, int64_t rows, const std::function<void(std::span<const float>)>& show) {
  const size_t vocab = logits->size() / static_cast<size_t>(rows);
  for (size_t at = 0; at < logits->size(); at += vocab) show(std::span(*logits).subspan(at, vocab));
  logits->erase(logits->begin(), logits->end() - static_cast<ptrdiff_t>(vocab));
}
}  // namespace

// Makes `next` the sequence. The cache and `next` agree in the first `common` tokens, and next.size() > common.
void Session::Compute(std::vector<TokenId> next, int64_t common, const StepControl& control) {
  const auto total = static_cast<int64_t>(next.size());
  std::vector<float> logits;
  try {
    ForgetFrom(common);
    const int64_t start = cached();
    for (int64_t at = start; at < total; at = cached()) {
      if (control.stop && control.stop()) throw Error(ErrorCode::kCancelled, "cancelled");
      const int64_t count = std::min({total - at, chunk_, runner_.LargestStep()});
      const std::vector<int64_t> step(next.begin() + at, next.begin() + at + count);
      logits = runner_.Step(step, {.all_rows = control.each_row != nullptr, .cancelled = control.stop});
      if (control.each_row) KeepLastRow(&logits, count, control.each_row);
      stats_.computed += count;
      if (control.progress) control.progress(cached() - start, total - start);
    }
  } catch (...) {
    ForgetFrom(common);
    throw;
  }
  tokens_ = std::move(next);
  logits_ = std::move(logits);
}

// Takes the cache back to `length` or, where rows that would be needed there are gone, to nothing.
void Session::ForgetFrom(int64_t length) noexcept {
  if (cached() <= length) return;
  runner_.Rewind(length >= runner_.RewindBound() ? length : 0);
}

}  // namespace offgraph::llm
