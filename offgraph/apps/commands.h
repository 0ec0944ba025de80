// The commands. Each Add function declares one command and its options, and returns what runs it once the command line
// was parsed. What runs a command returns the exit code, or throws Error.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace offgraph::apps {

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command AddRun(CLI::App& parent);
Command AddChat(CLI::App& parent);
Command AddInspect(CLI::App& parent);
Command AddBench(CLI::App& parent);
Command AddTokenize(CLI::App& parent);

}  // namespace offgraph::apps
