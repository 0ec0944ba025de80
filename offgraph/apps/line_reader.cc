#include "offgraph/apps/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <iostream>
#include <utility>

#include "offgraph/apps/console.h"

namespace offgraph::apps {
namespace {

constexpr int kHistoryLines = 1000;

struct EditLineDeleter {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct HistoryDeleter {
  void operator()(History* history) const { history_end(history); }
};

}  // namespace

struct LineReader::Impl {
  std::string prompt;
  // Null where stdin is not a terminal. The history outlives the editor, which points to it.
  std::unique_ptr<History, HistoryDeleter> history;
  std::unique_ptr<EditLine, EditLineDeleter> editor;

  static char* Prompt(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self)->prompt.data();
  }

  // One character of the terminal's encoding, for the editor. Its own reading would miss a Ctrl-C that comes between
  // the prompt and the wait for input.
  static int GetCharacter(EditLine* /*editor*/, wchar_t* character) {
    std::mbstate_t state = {};
    for (;;) {
      char byte = 0;
      if (!WaitForInput()) return -1;
      const ssize_t count = read(STDIN_FILENO, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return static_cast<int>(count);
      const size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<size_t>(-2)) continue;  // the rest is to come
      if (length != static_cast<size_t>(-1)) return 1;
      state = {};  // no character of this encoding: passed over
    }
  }

  void OpenEditor() {
    std::setlocale(LC_CTYPE, "");
    history.reset(history_init());
    editor.reset(el_init("offgraph", stdin, stdout, stderr));
    if (!history || !editor) {
      editor.reset();
      return;
    }
    HistEvent event;
    ::history(history.get(), &event, H_SETSIZE, kHistoryLines);
    ::history(history.get(), &event, H_SETUNIQUE, 1);
    el_set(editor.get(), EL_CLIENTDATA, this);
    el_set(editor.get(), EL_PROMPT, &Prompt);
    el_wset(editor.get(), EL_GETCFN, &GetCharacter);
    el_set(editor.get(), EL_EDITOR, "emacs");
    el_set(editor.get(), EL_HIST, ::history, history.get());
    el_source(editor.get(), nullptr);
  }

  std::optional<std::string> Edit() {
    int count = 0;
    // The editor itself prints the prompt first. A Ctrl-D that comes between the two would be taken by the terminal.
    el_set(editor.get(), EL_PREP_TERM, 1);
    const char* line = el_gets(editor.get(), &count);
    if (line == nullptr || count <= 0) {
      if (!Interrupted()) return std::nullopt;
      ClearInterrupt();
      std::cout << "\n";
      el_reset(editor.get());
      return std::string();
    }
    std::string text(line, static_cast<size_t>(count));
    HistEvent event;
    if (text != "\n") ::history(history.get(), &event, H_ENTER, text.c_str());
    if (text.back() == '\n') text.pop_back();
    return text;
  }
};

LineReader::LineReader(std::string prompt) : impl_(std::make_unique<Impl>()) {
  impl_->prompt = std::move(prompt);
  if (isatty(STDIN_FILENO) == 1) impl_->OpenEditor();
}

LineReader::~LineReader() = default;

bool LineReader::interactive() const { return impl_->editor != nullptr; }

std::optional<std::string> LineReader::Read() {
  if (impl_->editor) return impl_->Edit();
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace offgraph::apps
