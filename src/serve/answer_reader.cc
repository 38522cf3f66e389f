// SPDX-License-Identifier: Apache-2.0
#include "serve/answer_reader.h"

namespace vitrine::serve {

AnswerReader::AnswerReader(const Tokenizer& tokenizer, const AnswerForm& form)
    : tokenizer_(tokenizer),
      decoder_(tokenizer, /*skip_special_tokens=*/form.format == "plain"),
      stop_(form.stop) {
  if (!form.is_conversation) return;
  parser_.emplace(form.format,
                  ChatOutputOptions{.prompt = form.prompt, .tools_json = form.tools_json});
}

ReadText AnswerReader::add(int32_t token, bool may_end) {
  if (token < 0 || token >= tokenizer_.vocab_size()) return {};
  // Special tokens mean something where they are marks of the answer's format.
  const bool is_left_out =
      parser_ && tokenizer_.is_special(token) && !parser_->is_mark(tokenizer_.token_text(token));
  if (is_left_out) return {};
  ReadText read;
  read.text = stop_.add(decoder_.add(token), [may_end](size_t) { return may_end; });
  if (parser_ && !read.text.empty()) read.deltas = parser_->add(read.text);
  return read;
}

ReadText AnswerReader::finish() {
  ReadText read;
  read.text = stop_.add(decoder_.finish()) + stop_.finish();
  if (!parser_) return read;
  if (!read.text.empty()) read.deltas = parser_->add(read.text);
  for (ChatDelta& delta : parser_->finish()) read.deltas.push_back(std::move(delta));
  return read;
}

}  // namespace vitrine::serve
