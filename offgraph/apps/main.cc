// offgraph: the command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/cache/error.h"

// Of OpenBLAS, where that is the BLAS in use, and has threads.
extern "C" int blas_thread_shutdown_() __attribute__((weak));  // NOLINT(readability-identifier-naming): its name

namespace offgraph::apps {
namespace {

// OpenBLAS, which MLX calls for a few ops, makes its threads when it is loaded, and for a tenth of a second they do
// nothing but look for work, on the cores that load the model. It makes them again when there is work.
void StopIdleBlasThreads() {
  if (blas_thread_shutdown_ != nullptr) blas_thread_shutdown_();
}

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// A message may hold names out of a file: whatever they are, they are one line of text and no more than a page.
int Fail(const std::string& where, const std::string& message) {
  constexpr size_t kLongest = 2000;
  std::cout.flush();
  std::cerr << where << ": " << Printable(message.substr(0, kLongest)) << (message.size() > kLongest ? "..." : "")
            << std::endl;
  return kExitFailure;
}

int RunCommand(const Command& command) {
  const std::string where = "offgraph " + command.app->get_name();
  try {
    const int code = command.run();
    std::cout.flush();
    return std::cout ? code : Fail(where, "standard output: cannot be written");
  } catch (const Error& error) {
    const int code = Fail(where, error.what());
    return error.code() == ErrorCode::kCancelled ? kExitInterrupted : code;
  } catch (const std::bad_alloc&) {
    return Fail(where, "out of memory; a smaller --capacity or --kv-dtype fp16 needs less");
  } catch (const std::exception& error) {
    return Fail(where, error.what());
  }
}

int Main(int argc, char** argv) {
  StopIdleBlasThreads();
  CLI::App app("Runs language models that ExecuTorch exported for its MLX backend (.pte files).", "offgraph");
  app.set_version_flag("--version", "offgraph " OFFGRAPH_VERSION, "Print the version");
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer("offgraph COMMAND --help lists a command's options, with examples.");
  const std::vector<Command> commands = {AddRun(app), AddChat(app), AddInspect(app), AddBench(app), AddTokenize(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::string where = "offgraph";
    for (const CLI::App* used : app.get_subcommands()) where += " " + used->get_name();
    std::cerr << where << ": " << error.what() << "\nSee " << where << " --help." << std::endl;
    return kExitUsage;
  }
  WatchInterrupts();
  for (const Command& command : commands) {
    if (command.app->parsed()) return RunCommand(command);
  }
  return kExitUsage;
}

}  // namespace
}  // namespace offgraph::apps

int main(int argc, char** argv) {
  try {
    return offgraph::apps::Main(argc, argv);
  } catch (const std::exception& error) {  // of what precedes a command: memory for its options
    std::fprintf(stderr, "offgraph: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
