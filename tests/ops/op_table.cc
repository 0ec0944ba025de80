// Writes docs/OPS.md: every op of the payload's schema, what it computes, its fields, where its handler is, and the
// tests that cover it.
//
//   op_table write         the page, and coverage.json (which ops the shared op cases and fixtures use) where those
//                          are at hand
//   op_table check-page    whether the page is what would be written
//   op_table check-index   whether coverage.json is
//   op_table check-tests   whether every op has a test
//
// Exit status 0, or 1 and why not.
// Exit status 77 means that the larger sets are not on this machine (CTest counts that as skipped).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/program/handler.h"
#include "offgraph/program/op_schema.h"
#include "offgraph/program/payload.h"
#include "offgraph/pte/container.h"
#include "tests/ops/op_case.h"

namespace offgraph::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using program::FieldSchema;
using program::OpSchema;

constexpr int kSkipped = 77;
constexpr const char* kPageFile = OFFGRAPH_DOCS "/OPS.md";
constexpr const char* kIndexFile = OFFGRAPH_TEST_DATA "/ops/coverage.json";

// op -> the names of what uses it, in order
using Coverage = std::map<std::string, std::set<std::string>>;

void AddOps(const fs::path& file, const std::string& name, Coverage* coverage) {
  const auto container = pte::Container::Open(file);
  for (const pte::MethodInfo& method : container->methods()) {
    for (const pte::DelegateInfo& delegate : method.delegates) {
      const program::Graph graph = program::ReadPayload(delegate.processed, name);
      for (const program::Chain& chain : graph.chains) {
        for (const program::Instruction& instruction : chain) (*coverage)[instruction.op].insert(name);
      }
    }
  }
}

// The op cases and the fixtures of the shared folder.
json MakeIndex() {
  Coverage op_cases;
  Coverage fixtures;
  for (const auto& entry : fs::directory_iterator(OFFGRAPH_SHARED "/opcases")) {
    AddOps(entry.path() / "model.pte", entry.path().filename(), &op_cases);
  }
  for (const auto& entry : fs::directory_iterator(OFFGRAPH_SHARED "/fixtures")) {
    if (entry.path().extension() == ".pte") AddOps(entry.path(), entry.path().stem(), &fixtures);
  }
  return {{"opcases", op_cases}, {"fixtures", fixtures}};
}

// One line an op, so that a change of one shows as one line.
std::string IndexText(const json& index) {
  std::string text = "{\n";
  for (const char* kind : {"fixtures", "opcases"}) {
    text += " \"" + std::string(kind) + "\": {\n";
    for (const auto& [op, names] : index[kind].items()) {
      text += "  \"" + op + "\": " + names.dump() + (op == index[kind].rbegin().key() ? "\n" : ",\n");
    }
    text += kind == std::string_view("fixtures") ? " },\n" : " }\n";
  }
  return text + "}\n";
}

Coverage CaseCoverage() {
  Coverage coverage;
  const json cases = ReadCaseFile();
  for (const json& one : cases) {
    const auto add = [&](const json& chain) {
      for (const json& op : chain) coverage[op[0]].insert(one["name"].get<std::string>());
    };
    add(one["ops"]);
    if (one.contains("chains")) std::ranges::for_each(one["chains"], add);
  }
  return coverage;
}

// "12 cases", "12 op cases (add, ..)"
std::string Count(const std::set<std::string>& names, const std::string& what, bool example) {
  if (names.empty()) return "";
  std::string text = std::to_string(names.size()) + " " + what + (names.size() > 1 ? "s" : "");
  if (example) text += " (`" + *names.begin() + "`" + (names.size() > 1 ? ", ..)" : ")");
  return text;
}

class Page {
 public:
  Page() : cases_(CaseCoverage()) {
    const json index = json::parse(std::ifstream(kIndexFile));
    op_cases_ = index["opcases"].get<Coverage>();
    fixtures_ = index["fixtures"].get<Coverage>();
    for (const program::HandlerFamily& family : program::HandlerFamilies()) {
      for (const program::Handler& handler : family.handlers) handlers_[handler.op] = {&handler, family.file};
    }
  }

  std::vector<std::string> Untested() const {
    std::vector<std::string> untested;
    for (const OpSchema& op : program::OpSchemas()) {
      if (!op.name.empty() && Tests(op.name).empty()) untested.push_back(op.name);
    }
    return untested;
  }

  std::string Text() const {
    std::string text =
        "# Ops\n\n"
        "Every op of the MLX payload's schema that this build was made with. The page is written by the build\n"
        "(`cmake --build build --target docs`) from the schema's own description, the table of handlers and the tests; "
        "a test\n"
        "fails where it is out of date.\n\n"
        "A field in brackets may be absent, or has the default that is shown. A *value* is a number that is only known "
        "in the\n"
        "step. Tests: *cases* are of `tests/data/ops` (fields, element types, dynamic values, refusals, against "
        "references that\n"
        "do not use MLX), *op cases* are ExecuTorch's own op tests as its exporter writes them, *fixtures* are whole "
        "models.\n\n"
        "| op | computes | fields | handler | tests |\n| --- | --- | --- | --- | --- |\n";
    for (const OpSchema& op : program::OpSchemas()) {
      if (!op.name.empty()) text += Row(op);
    }
    text += "\nThe optimizer's own ops, which no file holds:\n\n| op | computes | handler |\n| --- | --- | --- |\n";
    for (const auto& [name, entry] : handlers_) {
      const bool in_schema = std::ranges::count(program::OpSchemas(), name, &OpSchema::name) > 0;
      if (!in_schema)
        text += "| " + std::string(name) + " | " + Escape(entry.handler->summary) + " | " + Link(entry.file) + " |\n";
    }
    return text;
  }

 private:
  struct Entry {
    const program::Handler* handler = nullptr;
    std::string_view file;
  };

  static std::string Escape(std::string_view text) {
    std::string escaped;
    for (char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
    return escaped;
  }
  static std::string Link(std::string_view file) {
    return "[" + std::string(file) + "](../offgraph/program/" + std::string(file) + ")";
  }

  static std::string FieldText(const FieldSchema& field) {
    std::string text = field.name + ": " + ToString(field.kind);
    if (field.required) return text;
    const bool has_default = !std::holds_alternative<std::monostate>(field.default_value);
    return "[" + text + (has_default ? " = " + program::ToString(field.default_value) : "") + "]";
  }

  std::string Row(const OpSchema& op) const {
    std::string fields;
    for (const FieldSchema& field : op.fields) fields += (fields.empty() ? "" : ", ") + FieldText(field);
    const auto entry = handlers_.find(op.name);
    const std::string why(program::WhyUnsupported(op.name));
    const std::string summary = entry != handlers_.end() ? Escape(entry->second.handler->summary)
                                : why.empty()            ? "**not handled**"
                                                         : "refused when a file is loaded: " + why;
    const std::string tests = Tests(op.name);
    return "| " + op.name + " | " + summary + " | " + fields + " | " +
           (entry != handlers_.end() ? Link(entry->second.file) : "") + " | " + (tests.empty() ? "**none**" : tests) +
           " |\n";
  }

  std::string Tests(const std::string& op) const {
    const auto find = [&](const Coverage& coverage) {
      const auto found = coverage.find(op);
      return found != coverage.end() ? found->second : std::set<std::string>();
    };
    std::string text;
    for (const std::string& part : {Count(find(cases_), "case", false), Count(find(op_cases_), "op case", true),
                                    Count(find(fixtures_), "fixture", false)}) {
      text += (text.empty() || part.empty() ? "" : ", ") + part;
    }
    return text;
  }

  Coverage cases_;
  Coverage op_cases_;
  Coverage fixtures_;
  std::map<std::string_view, Entry> handlers_;
};

void Write(const std::string& file, const std::string& text) {
  std::ofstream stream(file);
  stream << text;
  if (!stream.flush()) throw std::runtime_error("cannot write " + file);
}

int Check(const std::string& file, const std::string& text) {
  std::ifstream stream(file);
  const std::string committed{std::istreambuf_iterator<char>(stream), {}};
  if (committed == text) return 0;
  std::cerr << file << " is out of date; write it with: cmake --build build --target docs\n";
  return 1;
}

bool HasShared() {
  return fs::is_directory(OFFGRAPH_SHARED "/opcases") && fs::is_directory(OFFGRAPH_SHARED "/fixtures");
}

int Main(std::string_view mode) {
  if (mode == "write") {
    if (HasShared()) Write(kIndexFile, IndexText(MakeIndex()));
    Write(kPageFile, Page().Text());
    return 0;
  }
  if (mode == "check-page") return Check(kPageFile, Page().Text());
  if (mode == "check-index") {
    if (HasShared()) return Check(kIndexFile, IndexText(MakeIndex()));
    std::cerr << "the op cases and fixtures are not at " OFFGRAPH_SHARED "; nothing to index\n";
    return kSkipped;
  }
  if (mode != "check-tests") throw std::runtime_error("write, check-page, check-index or check-tests?");
  const std::vector<std::string> untested = Page().Untested();
  for (const std::string& op : untested) std::cerr << op << " has no test\n";
  return untested.empty() ? 0 : 1;
}

}  // namespace
}  // namespace offgraph::testing

int main(int argc, char** argv) {
  try {
    return offgraph::testing::Main(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::cerr << "op_table: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
