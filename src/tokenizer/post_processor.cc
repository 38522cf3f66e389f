// SPDX-License-Identifier: Apache-2.0
#include "post_processor.h"

namespace vitrine::tokenizer {

PostProcessor PostProcessor::load(const JsonNode& node, int32_t vocab_size) {
  PostProcessor processor;
  if (!node.is_null()) processor.add(node, vocab_size);
  return processor;
}

void PostProcessor::add(const JsonNode& node, int32_t vocab_size) {
  const std::string& type = node.at("type").as_string();
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const JsonNode& element : node.at("processors").elements()) add(element, vocab_size);
    return;
  }
  if (type != "TemplateProcessing") {
    node.get("type").unsupported("post-processor " + quote(type));
  }
  if (has_template_) node.unsupported("a second TemplateProcessing");
  has_template_ = true;
  const JsonNode special_tokens = node.at("special_tokens");
  for (const JsonNode& element : node.at("single").elements()) {
    Piece piece;
    const JsonNode sequence = element.get("Sequence");
    if (!sequence.is_null()) {
      const JsonNode id = sequence.at("id");
      if (id.as_string() != "A") id.fail(quote(id.as_string()), "A, the only sequence of a single");
      piece.is_text = true;
    } else {
      const std::string& name = element.at("SpecialToken").at("id").as_string();
      const JsonNode ids = special_tokens.at(name.c_str()).at("ids");
      for (const JsonNode& id : ids.elements()) {
        piece.ids.push_back(static_cast<int32_t>(id.as_integer(vocab_size - 1)));
      }
    }
    pieces_.push_back(std::move(piece));
  }
}

std::vector<int32_t> PostProcessor::apply(std::vector<int32_t> ids, bool add_special_tokens) const {
  if (!has_template_) return ids;
  std::vector<int32_t> out;
  for (const Piece& piece : pieces_) {
    if (piece.is_text)
      out.insert(out.end(), ids.begin(), ids.end());
    else if (add_special_tokens)
      out.insert(out.end(), piece.ids.begin(), piece.ids.end());
  }
  return out;
}

}  // namespace vitrine::tokenizer
