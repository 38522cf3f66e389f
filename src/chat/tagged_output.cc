// SPDX-License-Identifier: Apache-2.0
#include "tagged_output.h"

#include <algorithm>
#include <utility>

namespace vitrine::chat {

namespace {

constexpr size_t kMaxCallBytes = size_t{1} << 20;
constexpr size_t kMaxHeadBytes = 512;
/// Marks that a text of one call may have within, and calls that may turn out to be none. They
/// bound the work of a hostile text; behind them all is content.
constexpr int kMaxCloses = 64;
constexpr int kMaxFailures = 64;

class TaggedReader : public OutputReader {
 public:
  TaggedReader(TaggedSyntax syntax, std::string_view prompt, const ToolTypes& tools)
      : syntax_(std::move(syntax)), tools_(tools) {
    for (const MarkPair& pair : syntax_.reasoning) content_marks_.push_back(pair.open);
    for (const std::string_view mark : syntax_.sections) content_marks_.push_back(mark);
    for (const MarkPair& pair : syntax_.calls) content_marks_.push_back(pair.open);
    first_marks_ = content_marks_;
    for (const MarkPair& pair : syntax_.reasoning) first_marks_.push_back(pair.close);
    prompt = trim_space(prompt);
    for (size_t i = 0; i < syntax_.reasoning.size(); ++i) {
      if (prompt.ends_with(syntax_.reasoning[i].open)) begin_reasoning(i);
    }
  }

  size_t read(std::string_view text, bool is_end, OutputSink& sink) override {
    if (is_first_) {
      is_first_ = false;
      if (mode_ == Mode::kReasoning) sink.boundary();
    }
    switch (mode_) {
      case Mode::kReasoning: return read_reasoning(text, is_end, sink);
      case Mode::kCall: return read_call(text, is_end, sink);
      case Mode::kHead: return read_head(text, is_end, sink);
      case Mode::kArguments: return read_arguments(text, is_end, sink);
      case Mode::kContent: break;
    }
    return read_content(text, is_end, sink);
  }

  bool wants_all() const override { return mode_ == Mode::kCall; }

 private:
  enum class Mode : uint8_t { kContent, kReasoning, kCall, kHead, kArguments };

  void begin_reasoning(size_t index) {
    mode_ = Mode::kReasoning;
    first_marks_.clear();
    part_marks_ = {syntax_.reasoning[index].close};
    if (syntax_.calls_end_reasoning) {
      for (const std::string_view mark : syntax_.sections) part_marks_.push_back(mark);
      for (const MarkPair& pair : syntax_.calls) part_marks_.push_back(pair.open);
    }
  }

  void begin_call(const MarkPair& pair) {
    call_ = pair;
    scanned_ = 0;
    num_closes_ = 0;
    mode_ = syntax_.separator.empty() ? Mode::kCall : Mode::kHead;
    part_marks_ = {end_of_call(), pair.open};
    for (const std::string_view mark : syntax_.sections) part_marks_.push_back(mark);
    if (mode_ == Mode::kHead) part_marks_.push_back(syntax_.separator);
  }

  std::string_view end_of_call() const { return call_.close.empty() ? call_.open : call_.close; }

  size_t read_content(std::string_view text, bool is_end, OutputSink& sink) {
    const FoundMark found = find_mark(text, first_marks_.empty() ? content_marks_ : first_marks_);
    const size_t before = is_end && !found.is_found() ? text.size() : found.certain;
    if (before > 0) {
      sink.content(text.substr(0, before));
      if (!trim_space(text.substr(0, before)).empty()) first_marks_.clear();
      return before;
    }
    if (!found.is_found()) return 0;
    size_t index = found.index;
    if (index >= content_marks_.size()) {  // reasoning ends that neither prompt nor answer began
      sink.boundary();
      return first_marks_[index].size();
    }
    const size_t size = content_marks_[index].size();
    if (index < syntax_.reasoning.size()) {
      sink.boundary();
      begin_reasoning(index);
      return size;
    }
    index -= syntax_.reasoning.size();
    if (index < syntax_.sections.size()) {
      sink.boundary();
    } else {
      begin_call(syntax_.calls[index - syntax_.sections.size()]);
    }
    return size;
  }

  size_t read_reasoning(std::string_view text, bool is_end, OutputSink& sink) {
    const FoundMark found = find_mark(text, part_marks_);
    const size_t before = is_end && !found.is_found() ? text.size() : found.certain;
    if (before > 0) {
      sink.reasoning(text.substr(0, before));
      return before;
    }
    if (!found.is_found()) return 0;
    sink.boundary();
    mode_ = Mode::kContent;
    return found.index == 0 ? part_marks_[0].size() : read_content(text, is_end, sink);
  }

  /// What was taken for a call is content, its mark first.
  size_t give_up(std::string_view text, bool is_end, OutputSink& sink) {
    mode_ = Mode::kContent;
    sink.content(call_.open);
    first_marks_.clear();
    if (++num_failures_ == kMaxFailures) content_marks_.clear();
    return read_content(text, is_end, sink);
  }

  bool read_whole(std::string_view text, bool& needs_more, OutputSink& sink) {
    std::vector<ToolCall> calls;
    const CallRead found = syntax_.read_calls(text, tools_, calls);
    needs_more = found == CallRead::kNeedsMore;
    if (found != CallRead::kCalls) return false;
    for (const ToolCall& call : calls) {
      sink.begin_call(call.id, call.name);
      sink.arguments(call.arguments);
    }
    sink.boundary();
    mode_ = Mode::kContent;
    return true;
  }

  size_t read_call(std::string_view text, bool is_end, OutputSink& sink) {
    bool needs_more = false;
    for (;;) {
      const size_t at = text.find(end_of_call(), scanned_);
      if (at == text.npos) break;
      if (at > kMaxCallBytes) return give_up(text, is_end, sink);
      if (read_whole(text.substr(0, at), needs_more, sink)) return at + call_.close.size();
      if (!needs_more || ++num_closes_ == kMaxCloses) return give_up(text, is_end, sink);
      scanned_ = at + end_of_call().size();
    }
    const size_t certain = text.size() - std::min(text.size(), end_of_call().size() - 1);
    if (certain > kMaxCallBytes) return give_up(text, is_end, sink);
    if (is_end) {  // a call that is whole but for its mark counts
      return read_whole(text, needs_more, sink) ? text.size() : give_up(text, is_end, sink);
    }
    scanned_ = std::max(scanned_, certain);
    return 0;
  }

  size_t read_head(std::string_view text, bool is_end, OutputSink& sink) {
    const std::string_view begin =
        text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (!begin.empty() && syntax_.headless.find(begin[0]) != std::string_view::npos) {
      mode_ = Mode::kCall;
      return read_call(text, is_end, sink);
    }
    const FoundMark found = find_mark(text, part_marks_);
    if (!found.is_found() && found.certain <= kMaxHeadBytes && !is_end) return 0;
    ToolCall call;
    if (found.at > kMaxHeadBytes || found.index + 1 != part_marks_.size() ||
        !syntax_.read_head(text.substr(0, found.at), call)) {
      return give_up(text, is_end, sink);
    }
    if (call.name.empty()) {
      mode_ = Mode::kCall;
      return read_call(text, is_end, sink);
    }
    sink.begin_call(call.id, call.name);
    mode_ = Mode::kArguments;
    part_marks_.pop_back();
    return found.at + syntax_.separator.size();
  }

  size_t read_arguments(std::string_view text, bool is_end, OutputSink& sink) {
    const FoundMark found = find_mark(text, part_marks_);
    const size_t before = is_end && !found.is_found() ? text.size() : found.certain;
    if (before > 0) {
      sink.arguments(text.substr(0, before));
      return before;
    }
    if (!found.is_found()) return 0;
    sink.boundary();
    mode_ = Mode::kContent;
    const bool is_close = found.index == 0 && !call_.close.empty();
    return is_close ? call_.close.size() : read_content(text, is_end, sink);
  }

  const TaggedSyntax syntax_;
  const ToolTypes& tools_;
  std::vector<std::string_view> content_marks_;  // of reasoning, sections, calls
  std::vector<std::string_view> first_marks_;    // the same before any content, and a few more
  std::vector<std::string_view> part_marks_;     // those that end the part at hand
  MarkPair call_;
  size_t scanned_ = 0;  // of a call's text: the mark that closes it does not begin before
  int num_closes_ = 0, num_failures_ = 0;
  Mode mode_ = Mode::kContent;
  bool is_first_ = true;
};

}  // namespace

std::unique_ptr<OutputReader> make_tagged_reader(TaggedSyntax syntax, std::string_view prompt,
                                                 const ToolTypes& tools) {
  return std::make_unique<TaggedReader>(std::move(syntax), prompt, tools);
}

}  // namespace vitrine::chat
