// SPDX-License-Identifier: Apache-2.0
// Harmony, the format of gpt-oss: messages on channels.
//
//   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f
//   <|constrain|>json<|message|>{…}<|call|>
//
// The prompt ends with "<|start|>assistant", so that the answer begins within a message's head.
#include <algorithm>

#include "call_tags.h"
#include "output_format.h"

namespace vitrine::chat {

namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kHeadMarks[] = {kMessage, kStart, "<|end|>", "<|return|>", "<|call|>"};
constexpr std::string_view kBodyMarks[] = {kStart, kChannel, "<|end|>", "<|return|>", "<|call|>"};
constexpr size_t kMaxHead = 512;

enum class Target : uint8_t { kContent, kReasoning, kCall };

/// What a head says of its message.
struct Head {
  Target target = Target::kContent;
  std::string_view recipient = {};
};

/// Words of a head, and its marks.
std::vector<std::string_view> head_words(std::string_view head) {
  std::vector<std::string_view> words;
  while (!(head = trim_space(head)).empty()) {
    size_t size = head.find_first_of(" \t\r\n");
    for (const std::string_view mark : {kChannel, kConstrain}) {
      const size_t at = head.find(mark);
      size = std::min(size, at == 0 ? mark.size() : at);
    }
    words.push_back(head.substr(0, size));
    head.remove_prefix(words.back().size());
  }
  return words;
}

/// Returns false where there is something in it that says nothing here, and must not be lost.
bool read_head(std::string_view text, Head& head) {
  constexpr std::string_view kTo = "to=", kFunctions = "functions.";
  constexpr std::string_view kTypes[] = {"json", "text", "code"};
  std::string_view channel;
  bool awaits_channel = false, is_first = true;
  for (const std::string_view word : head_words(text)) {
    if (word == kChannel && channel.empty()) {
      awaits_channel = true;
    } else if (awaits_channel) {
      channel = word;
      awaits_channel = false;
    } else if (word.starts_with(kTo) && head.recipient.empty()) {
      head.recipient = word.substr(kTo.size());
      if (head.recipient.starts_with(kFunctions)) head.recipient.remove_prefix(kFunctions.size());
      if (head.recipient.empty()) return false;
    } else if (word != kConstrain && std::ranges::find(kTypes, word) == std::end(kTypes) &&
               !(is_first && word == "assistant")) {
      return false;
    }
    is_first = false;
  }
  if (!head.recipient.empty()) {
    head.target = Target::kCall;
  } else if (channel == "analysis") {
    head.target = Target::kReasoning;
  }
  constexpr std::string_view kChannels[] = {"", "analysis", "commentary", "final"};
  return std::ranges::find(kChannels, channel) != std::end(kChannels);
}

class HarmonyReader : public OutputReader {
 public:
  explicit HarmonyReader(std::string_view prompt) {
    const size_t start = prompt.rfind(kStart);
    if (start == prompt.npos) return;
    const std::string_view open = prompt.substr(start + kStart.size());
    const size_t message = open.find(kMessage);
    if (message == open.npos) {
      if (open.size() <= kMaxHead) opened_ = open;
    } else if (find_mark(open, kBodyMarks).at > message || open.starts_with("assistant")) {
      begun_ = open.substr(0, message);  // a message that was begun for the model
      is_body_ = true;
    }
  }

  size_t read(std::string_view text, bool is_end, OutputSink& sink) override {
    if (!begun_.empty() && !begin_body(std::exchange(begun_, {}), sink)) target_ = Target::kContent;
    return is_body_ ? read_body(text, is_end, sink) : read_head_of(text, is_end, sink);
  }

 private:
  bool begin_body(std::string_view words, OutputSink& sink) {
    Head head;
    const bool is_known = read_head(words, head);
    is_body_ = true;
    target_ = is_known ? head.target : Target::kContent;
    if (is_known && target_ == Target::kCall) {
      sink.begin_call("", head.recipient);
    } else {
      sink.boundary();
    }
    return is_known;
  }

  /// What stands outside of messages is content.
  void leave_message(OutputSink& sink) {
    sink.boundary();
    is_body_ = true;
    target_ = Target::kContent;
  }

  size_t read_head_of(std::string_view text, bool is_end, OutputSink& sink) {
    const FoundMark found = find_mark(text, kHeadMarks);
    if (!found.is_found() && found.certain <= kMaxHead && !is_end) return 0;
    const std::string_view words = text.substr(0, std::min(found.at, text.size()));
    if (!found.is_found() || found.at > kMaxHead) {  // no head
      leave_message(sink);
      const size_t size = is_end && !found.is_found() ? text.size() : found.certain;
      sink.content(text.substr(0, size));
      return size;
    }
    const std::string_view mark = kHeadMarks[found.index];
    if (mark == kMessage) {
      if (!begin_body(std::exchange(opened_, {}) + std::string(words), sink)) sink.content(words);
    } else {
      leave_message(sink);
      sink.content(words);
      sink.boundary();
      is_body_ = mark != kStart;
      opened_.clear();
    }
    return found.at + mark.size();
  }

  size_t read_body(std::string_view text, bool is_end, OutputSink& sink) {
    const FoundMark found = find_mark(text, kBodyMarks);
    const size_t before = is_end && !found.is_found() ? text.size() : found.certain;
    if (before > 0) {
      put(text.substr(0, before), sink);
      return before;
    }
    if (!found.is_found()) return 0;
    leave_message(sink);
    const std::string_view mark = kBodyMarks[found.index];
    is_body_ = mark != kStart && mark != kChannel;
    return mark == kChannel ? read_head_of(text, is_end, sink) : mark.size();
  }

  void put(std::string_view text, OutputSink& sink) const {
    if (target_ == Target::kReasoning) {
      sink.reasoning(text);
    } else if (target_ == Target::kCall) {
      sink.arguments(text);
    } else {
      sink.content(text);
    }
  }

  std::string opened_;  // the part of a head that stands in the prompt
  std::string begun_;   // the head of a message that begins in the prompt
  Target target_ = Target::kContent;
  bool is_body_ = false;
};

/// A prompt that ends within a message's body is none that gpt-oss's template makes, and not known
/// here.
std::string harmony_call_tags(const CallRequest& request) {
  const Texts marks = {kStart, kChannel, kMessage, kConstrain, "<|end|>", "<|return|>", "<|call|>"};
  const TagFormat text = tag_text(marks);
  // A message before the last one: thoughts, or what a user is told of the calls that follow.
  const TagFormat begun = tag_sequence(
      {tag_literal("<|channel|>"), tag_choice({tag_literal("analysis"), tag_literal("commentary")}),
       tag_literal("<|message|>"), text});
  const TagFormat before =
      tag_star(tag_sequence({begun, tag_literal("<|end|><|start|>assistant")}));
  std::vector<TagFormat> last;
  if (!request.must_call) {
    last = {tag_sequence({tag_literal("<|channel|>final<|message|>"), text}), begun};
  }
  // gpt-oss names the function before the channel, or behind it.
  std::vector<TagFormat> behind, ahead;
  for (const ToolFunction& function : request.functions) {
    const TagFormat arguments = tag_arguments(function, marks);
    behind.push_back(
        tag_sequence({tag_literal(function.name + " <|constrain|>json<|message|>"), arguments}));
    ahead.push_back(
        tag_sequence({tag_literal(function.name + "<|channel|>commentary "),
                      tag_choice({tag_literal("<|constrain|>json"), tag_literal("json")}),
                      tag_literal("<|message|>"), arguments}));
  }
  if (!behind.empty()) {
    last.push_back(
        tag_sequence({tag_literal("<|channel|>commentary to=functions."), tag_choice(behind)}));
    last.push_back(tag_sequence({tag_literal(" to=functions."), tag_choice(ahead)}));
  }
  return tag_sequence({before, tag_choice(last)});
}

OutputFormat harmony_format() {
  return {.name = "harmony",
          .rank = 5,
          .signs = {kChannel, kMessage},
          .marks = {kStart, kChannel, kMessage, kConstrain, "<|end|>", "<|return|>", "<|call|>"},
          .make = [](std::string_view prompt, const ToolTypes&) -> std::unique_ptr<OutputReader> {
            return std::make_unique<HarmonyReader>(prompt);
          },
          .call_tags = harmony_call_tags};
}

VITRINE_REGISTER_OUTPUT_FORMAT(harmony_format);

}  // namespace

}  // namespace vitrine::chat
