// Flow: what can be known of a graph's slots without running it.
//
// Checked at load: every slot is written before it is read, on every way through the chains; constants are written by
// the init chain only; chains do not call themselves, and call each other a bounded number of times.
// Found for the interpreter: the last use of every temporary.
#pragma once

#include <string>
#include <vector>

#include "offgraph/program/graph.h"

namespace offgraph::program {

// "chain 0, instruction 12 (AddNode)"
std::string Place(const Graph& graph, size_t chain, size_t instruction);

// Throws Error(kBadFile) that starts with `name`.
void CheckFlow(const Graph& graph, const std::string& name);

// For each instruction of `chain`, the temporaries that nothing reads after it (before they are written again).
// Chains that it calls are taken into account; inside of those nothing is dropped. REQUIRES: CheckFlow passed.
std::vector<std::vector<Tid>> LastUses(const Graph& graph, size_t chain);

}  // namespace offgraph::program
