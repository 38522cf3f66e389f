// SPDX-License-Identifier: Apache-2.0
#include "line_editor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <string_view>

#include "common.h"
#include "utf8_locale.h"

namespace cli {

namespace {

constexpr size_t kMaxCharacters = size_t{4} << 20;
constexpr int kLineEditorPollMilliseconds = 200;
constexpr wchar_t kFinish = 0x1C;  // bound to what ends a line; no key sends it
constexpr wchar_t kHistoryBack = 0x10, kHistoryOn = 0x0E;  // Ctrl-P and Ctrl-N
constexpr wchar_t kReplacement = 0xFFFD;
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";
constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";

volatile std::sig_atomic_t was_resized = 0, passed_signal = 0;

/// A signal has this handler while it lives.
class ScopedSignal {
 public:
  ScopedSignal(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction action = {};
    action.sa_handler = handler;
    ::sigaction(signal, &action, &before_);
  }
  ~ScopedSignal() { ::sigaction(signal_, &before_, nullptr); }
  ScopedSignal(const ScopedSignal&) = delete;
  ScopedSignal& operator=(const ScopedSignal&) = delete;

 private:
  int signal_;
  struct sigaction before_ = {};
};

/// As if the key had been pressed.
unsigned char push(EditLine* editor, wchar_t key) {
  const wchar_t keys[] = {key, 0};
  el_wpush(editor, keys);
  return CC_NORM;
}

std::string to_utf8(std::wstring_view text) {
  std::string bytes;
  for (const wchar_t character : text) {
    char one[MB_LEN_MAX];
    mbstate_t state{};
    const size_t size = std::wcrtomb(one, character, &state);
    if (size != static_cast<size_t>(-1)) bytes.append(one, size);
  }
  return bytes;
}

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(const std::string& history) {
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || *terminal == '\0' || !std::strcmp(terminal, "dumb");
  if (is_dumb || ::isatty(STDIN_FILENO) == 0) return nullptr;
  const Utf8Locale utf8;
  std::unique_ptr<LineEditor> editor(new LineEditor);
  if (!utf8.is_there() || !editor->set_up()) return nullptr;
  editor->history_ = std::make_unique<ChatHistory>(history);
  el_wset(editor->editor_.get(), EL_HIST, history_w, editor->history_->get());
  return editor;
}

/// False where the terminal cannot be used.
bool LineEditor::set_up() {
  // Answers may go elsewhere: what is typed is drawn on the terminal that it comes from.
  char name[256];
  if (::ttyname_r(STDIN_FILENO, name, sizeof(name)) != 0) return false;
  const int screen = ::isatty(STDOUT_FILENO) == 1 ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                                  : ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (screen < 0) return false;
  screen_.reset(::fdopen(screen, "w"));
  if (!screen_ || ::tcgetattr(STDIN_FILENO, &before_) != 0) return false;
  editor_.reset(el_init("vitrine", stdin, screen_.get(), screen_.get()));
  if (!editor_) return false;
  EditLine* editor = editor_.get();
  el_wset(editor, EL_CLIENTDATA, this);
  el_wset(editor, EL_GETCFN, &get_character);
  el_wset(editor, EL_PROMPT, &prompt);
  el_wset(editor, EL_EDITOR, L"emacs");
  el_wset(editor, EL_SIGNAL, 0);
  // What comes while an answer is written is kept whole, also where Ctrl-C ends that, and not
  // echoed into the answer. Line ends stay as they are in both modes: libedit draws a prompt before
  // it takes the terminal, and a paste that came in between would have each \r\n twice.
  el_wset(editor, EL_SETTY, L"-x", L"-icanon", L"-echo", L"-inlcr", L"-icrnl", L"+noflsh", nullptr);
  el_wset(editor, EL_SETTY, L"-d", L"-inlcr", L"-icrnl", nullptr);
  el_source(editor, nullptr);  // ~/.editrc
  bind_keys();
  draw(kPasteOn);
  return true;
}

LineEditor::~LineEditor() {
  if (!editor_) return;
  const Utf8Locale utf8;
  draw(kPasteOff);
  editor_.reset();
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void LineEditor::bind_keys() {
  EditLine* editor = editor_.get();
  const auto add = [&](const wchar_t* name, const wchar_t* help,
                       unsigned char (*function)(EditLine*, wint_t)) {
    el_wset(editor, EL_ADDFN, name, help, function);
  };
  add(L"chat-enter", L"Sends the message, or goes on in a new line behind a backslash", &on_enter);
  add(L"chat-new-line", L"Begins a new line of the message", &on_new_line);
  add(L"chat-paste", L"Takes in what is pasted", &on_paste);
  add(L"chat-up", L"Goes up a line, or back in the history", &on_up);
  add(L"chat-down", L"Goes down a line, or on in the history", &on_down);
  constexpr const wchar_t* kKeys[][2] = {
      {L"\\034", L"ed-newline"},
      {L"^M", L"chat-enter"},
      {L"^J", L"chat-enter"},
      {L"\\e^M", L"chat-new-line"},
      {L"\\e^J", L"chat-new-line"},
      {L"\\e[200~", L"chat-paste"},
      {L"\\e[A", L"chat-up"},
      {L"\\eOA", L"chat-up"},
      {L"\\e[B", L"chat-down"},
      {L"\\eOB", L"chat-down"},
      {L"^R", L"em-inc-search-prev"},
      {L"^W", L"ed-delete-prev-word"},
      {L"\\e[3~", L"ed-delete-next-char"},
      {L"\\e[H", L"ed-move-to-beg"},
      {L"\\eOH", L"ed-move-to-beg"},
      {L"\\e[1~", L"ed-move-to-beg"},
      {L"\\e[F", L"ed-move-to-end"},
      {L"\\eOF", L"ed-move-to-end"},
      {L"\\e[4~", L"ed-move-to-end"},
      {L"\\e[1;5C", L"em-next-word"},
      {L"\\e[1;5D", L"ed-prev-word"},
  };
  for (const auto& [key, function] : kKeys) el_wset(editor, EL_BIND, key, function, nullptr);
}

void LineEditor::draw(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), screen_.get());
  std::fflush(screen_.get());
}

bool LineEditor::read(std::string& message) {
  message.clear();
  const Utf8Locale utf8;
  const ScopedSignal resize(SIGWINCH, [](int) { was_resized = 1; });
  const ScopedSignal stop(SIGTSTP, [](int signal) { passed_signal = signal; });
  const ScopedSignal quit(SIGQUIT, [](int signal) { passed_signal = signal; });
  while (interrupt_signal() == 0) {
    // Not within a message: libedit's display does not stand a window that shrinks under it.
    if (was_resized != 0) el_resize(editor_.get());
    was_resized = 0;
    int count = 0;
    const wchar_t* line = el_wgets(editor_.get(), &count);
    if (line == nullptr || count <= 0) {
      draw("\n");
      return false;
    }
    std::wstring text(line, static_cast<size_t>(count));
    while (text.ends_with(L'\n')) text.pop_back();
    if (interrupt_signal() == SIGINT && !text.empty()) {
      clear_interrupt();  // what was typed is thrown away
      continue;
    }
    if (interrupt_signal() != 0) return false;
    std::ranges::replace(text, L'\r', L'\n');
    message = to_utf8(text);
    if (text.find_first_not_of(L" \t\n") != std::wstring::npos) history_->add(text);
    return true;
  }
  return false;
}

/// Gives the terminal back and passes the signal on; goes on where it only stopped the process.
void LineEditor::pass_on(int signal) {
  draw(kPasteOff);
  el_wset(editor_.get(), EL_PREP_TERM, 0);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  {
    const ScopedSignal as_ever(signal, SIG_DFL);
    ::raise(signal);
  }
  draw(kPasteOn);
  el_wset(editor_.get(), EL_PREP_TERM, 1);
  el_wset(editor_.get(), EL_REFRESH);
}

/// Takes a character out of the buffer; false where it holds no whole one.
bool LineEditor::take_character(wchar_t& character) {
  if (buffer_.empty()) return false;
  mbstate_t state{};
  size_t size = std::mbrtowc(&character, buffer_.data(), buffer_.size(), &state);
  if (size == static_cast<size_t>(-2) && !is_at_end_) return false;
  if (size == static_cast<size_t>(-1) || size == static_cast<size_t>(-2)) {
    character = kReplacement;
    size = 1;
  }
  buffer_.erase(0, std::max<size_t>(size, 1));
  return true;
}

/// 1: a character; 0: the end. A signal that ends a message is the key that does.
int LineEditor::get_character(EditLine* editor, wchar_t* character) {
  LineEditor& self = of(editor);
  while (true) {
    if (interrupt_signal() != 0) {
      *character = kFinish;
      return 1;
    }
    if (passed_signal != 0) {
      const int signal = passed_signal;
      passed_signal = 0;
      self.pass_on(signal);
    }
    if (self.take_character(*character)) return 1;
    if (self.is_at_end_) return 0;
    // With a limit, as a signal may come before the wait begins.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, kLineEditorPollMilliseconds) <= 0) continue;
    char bytes[4096];
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof(bytes));
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0) self.is_at_end_ = true;  // the terminal is gone
    if (size > 0) self.buffer_.append(bytes, static_cast<size_t>(size));
  }
}

LineEditor& LineEditor::of(EditLine* editor) {
  void* self = nullptr;
  el_wget(editor, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

wchar_t* LineEditor::prompt(EditLine*) {
  static wchar_t text[] = L"> ";
  return text;
}

unsigned char LineEditor::on_enter(EditLine* editor, wint_t) {
  const LineInfoW* line = el_wline(editor);
  if (line->lastchar == line->buffer || line->lastchar[-1] != L'\\') {
    return push(editor, kFinish);
  }
  el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
  el_deletestr(editor, 1);
  return on_new_line(editor, 0);
}

unsigned char LineEditor::on_new_line(EditLine* editor, wint_t) {
  return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::on_paste(EditLine* editor, wint_t) {
  std::wstring text;
  wchar_t character = 0;
  bool is_too_long = false;
  while (!text.ends_with(kPasteEnd)) {
    if (el_wgetc(editor, &character) != 1 || interrupt_signal() != 0) return CC_ERROR;
    if (character != 0) text += character;
    is_too_long = is_too_long || text.size() > kMaxCharacters;
    if (is_too_long) text.erase(0, text.size() - std::min(text.size(), kPasteEnd.size()));
  }
  text.resize(text.size() - kPasteEnd.size());
  if (is_too_long) {
    write_note(fmt::format("what was pasted is longer than {} characters and was left out",
                           kMaxCharacters));
    return CC_REDISPLAY;
  }
  // Terminals send a carriage return for a line's end, some both.
  std::wstring kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == L'\n' && i > 0 && text[i - 1] == L'\r') continue;
    kept += text[i] == L'\r' ? L'\n' : text[i];
  }
  return kept.empty() || el_winsertstr(editor, kept.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::on_up(EditLine* editor, wint_t) {
  const LineInfoW* line = el_wline(editor);
  const std::wstring_view before(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  const size_t end = before.rfind(L'\n');
  if (end == std::wstring_view::npos) return push(editor, kHistoryBack);
  const size_t begin = before.substr(0, end).rfind(L'\n') + 1;  // 0 where there is none
  const size_t column = before.size() - end - 1;
  const size_t target = begin + std::min(column, end - begin);
  el_cursor(editor, static_cast<int>(target) - static_cast<int>(before.size()));
  return CC_REFRESH;
}

unsigned char LineEditor::on_down(EditLine* editor, wint_t) {
  const LineInfoW* line = el_wline(editor);
  const std::wstring_view before(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  const std::wstring_view behind(line->cursor, static_cast<size_t>(line->lastchar - line->cursor));
  const size_t end = behind.find(L'\n');
  if (end == std::wstring_view::npos) return push(editor, kHistoryOn);
  const size_t column = before.size() - (before.rfind(L'\n') + 1);
  const size_t length = std::min(behind.find(L'\n', end + 1), behind.size()) - end - 1;
  el_cursor(editor, static_cast<int>(end + 1 + std::min(column, length)));
  return CC_REFRESH;
}

}  // namespace cli
