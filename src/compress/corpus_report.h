// SPDX-License-Identifier: Apache-2.0
// Private to the room: what kinds of text a calibration has, and which it lacks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace vitrine::compress {

/// Counts texts by kind, each by plain signs (a fence, a keyword, a formula): the shares say what a
/// corpus is made of, not what each document is.
class CorpusReport {
 public:
  /// `context`: positions of the model; 0: unknown.
  CorpusReport(int64_t vocab_size, int64_t context);

  /// Adds a document, of which `ids` were taken.
  void add_document(std::string_view text, int64_t document_tokens);
  void add_window(std::span<const int32_t> ids);
  /// Shares of the documents, of the vocabulary and of context lengths, and what is missing.
  nlohmann::ordered_json json() const;

 private:
  struct Kind {
    std::string_view group, name;
    bool (*is_found)(std::string_view text);
    int64_t documents = 0;
  };
  std::vector<Kind> kinds_;
  std::vector<bool> seen_ids_;
  std::vector<int64_t> lengths_;  // documents by bucket
  int64_t context_;
  int64_t documents_ = 0;
};

}  // namespace vitrine::compress
