// Interpreter: a graph's instructions, bound to their handlers, and the loop that runs them.
//
// Immutable once made; shared by the executors of a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offgraph/program/graph.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/row_selection.h"

namespace offgraph::program {

class Interpreter {
 public:
  // Binds every instruction of every chain. `graph` must outlive the interpreter, and have passed CheckFlow.
  // Throws Error(kUnsupported) that names every op without a handler, and Error(kBadFile) for fields that no handler
  // can take; the message starts with `name`.
  Interpreter(const Graph& graph, const std::string& name);

  // Runs a chain: afterwards the frame's slots hold lazy arrays. What a handler throws becomes an Error with the
  // instruction's place before it; the frame's slots are then in between.
  void Run(size_t chain, Frame& frame) const;

  // Where the main chain can drop all rows but the last before they reach the first output; absent where the ops in
  // between do not allow it anywhere.
  const std::optional<RowCut>& row_cut() const { return row_cut_; }

 private:
  struct Bound {
    Action action;
    std::vector<Tid> writes;
    std::vector<Tid> last_uses;
  };
  void RunOne(size_t chain, size_t index, Frame& frame) const;

  const Graph& graph_;
  std::vector<std::vector<Bound>> chains_;
  std::optional<RowCut> row_cut_;
};

}  // namespace offgraph::program
