// SequenceCache: the one owner of logical lengths, and of where each position's row lies.
//
// It knows integers only. Nothing here allocates K or V; see bytes/kv_store.h.
//
// Thread rule: const methods may run concurrently with each other; everything else needs the caller's lock.
//
// Invariants:
//  1. Every layer is at the same length. A step moves all of them or none.
//  2. At most one step is open.
//  3. An abandoned step leaves length() as it was. Its rows count as written from Begin on all the same (a ring's old
//     rows may be gone), so what Rewind accepts can only shrink.
//  4. A refused call changes nothing.
//  5. Going on at length() is always exact: in every layer, what the next query needs is there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "offgraph/cache/config.h"
#include "offgraph/cache/step_plan.h"

namespace offgraph::cache {

// One sequence's share of a step that is asked for.
struct StepRequest {
  SequenceId sequence = 0;
  int64_t position = 0;  // must equal length(sequence)
  int64_t tokens = 0;    // must be > 0
};

class SequenceCache {
 public:
  // Throws Error(kInvalidArgument) naming the field, its value and what it must be: a capacity, layer count, window,
  // step or reserve that is out of range, a layer list that is neither one nor n_layers long, sinks without a window,
  // a size whose computation would overflow.
  explicit SequenceCache(const CacheConfig& config);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  const CacheConfig& config() const;
  int64_t n_layers() const;

  // The sequences that exist. A cache starts with sequence 0, empty.
  // Throws Error(kInvalidArgument) for a sequence that does not exist (every method that takes one does).
  int64_t length(SequenceId sequence = 0) const;

  // Plans a step and opens it. All checks are made here, for every layer, before anything is computed:
  //  - a position ahead of the length (a gap) or behind it (without a rewind): kInvalidArgument, expected and got;
  //  - more tokens than the capacity leaves, or than a ring's largest step: kOutOfRange;
  //  - tokens <= 0, an empty or repeated list of sequences, position + tokens that overflows: kInvalidArgument;
  //  - a step that is open already: kInvalidArgument.
  std::shared_ptr<const StepPlan> Begin(std::span<const StepRequest> requests);
  // Ends the open step: lengths move to position + tokens. Never throws while a step is open; kInvalidArgument where
  // none is.
  void Commit();
  // Ends the open step, if any, and leaves the lengths as they were (invariant 3).
  void Abandon() noexcept;
  bool step_open() const;

  // Rewind accepts every length in [RewindBound(), length()]. It is 0 at best. For a ring it follows from the highest
  // position ever written, not from the length, so two rewinds in a row are as exact as one.
  int64_t RewindBound(SequenceId sequence = 0) const;
  // Forgets positions >= length. Going on is exact: the same as if they had never been. Accepts exactly the lengths
  // for which, in every layer, what the next query needs is still there: those from RewindBound() on, 0, and below the
  // bound those that need nothing from any ring that has wrapped (all they need are sinks).
  // Throws kOutOfRange (naming layer, bound and why) where rows are gone, and kInvalidArgument for a negative length,
  // one above length(), or while a step is open. A length that it accepts takes no memory: nothing else can fail.
  void Rewind(int64_t length, SequenceId sequence = 0);
  // Rewind to 0.
  void Clear(SequenceId sequence = 0);

  // The longest step that Begin would accept at this moment, in tokens; 0 where the cache is full or a step is open.
  int64_t LargestStep(SequenceId sequence = 0) const;
  // Rows that `layer`'s pool has when it is full. Throws kInvalidArgument for a layer out of range.
  int64_t MaxRows(int64_t layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::cache
