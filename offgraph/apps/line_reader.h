// Lines of input: edited, with history, where stdin is a terminal (libedit); read as they are where it is not.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace offgraph::apps {

class LineReader {
 public:
  // `prompt` is shown on a terminal only.
  explicit LineReader(std::string prompt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const;
  // The next line, without its end; absent at the end of the input. On a terminal, Ctrl-C gives an empty line.
  std::optional<std::string> Read();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::apps
