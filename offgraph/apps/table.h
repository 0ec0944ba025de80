// A table drawn in text: columns as wide as their widest cell, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace offgraph::apps {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns);

  // REQUIRES: one cell per column.
  void AddRow(std::vector<std::string> cells);
  // Lines that each end in a newline; box characters of Unicode. A cell's width is its number of code points.
  std::string Draw() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace offgraph::apps
