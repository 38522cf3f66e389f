// SPDX-License-Identifier: Apache-2.0
// Makes a job of a request: its prompt's ids, what its answer is held to, how that is read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "serve/job.h"
#include "serve/request_state.h"
#include "vitrine/model.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

/// Works beside the steps: it only reads the model. One thread at a time.
class RequestPreparer {
 public:
  /// `model` must stay.
  RequestPreparer(const Model& model, const ServerOptions& options);

  /// Fills in the state's form and reader. Throws what is wrong with the request: what
  /// ChatTemplate::render, Tokenizer::encode and Grammar's makers throw, and kInvalidArgument.
  std::unique_ptr<Job> prepare(RequestState& state);
  /// Returns the prompt's ids. Throws what prepare() throws of it. Thread-safe.
  std::vector<int32_t> encode(const ServeRequest& request) const;

 private:
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids, given_ids;  // these before lines were moved; empty: none were
  };
  Prompt make_prompt(const ServeRequest& request) const;
  std::string write_prompt(const ServeRequest& request,
                           const std::vector<ChatMessage>& messages) const;
  std::vector<ChatMessage> guarded(std::vector<ChatMessage> messages) const;
  std::vector<ChatMessage> stable_messages(const ServeRequest& request) const;
  void hold_answer(const ServeRequest& request, const std::string& prompt, Job& job);
  std::optional<Grammar> compile(const ServeRequest& request, const std::string& prompt);
  int adapter_index(const std::string& name) const;
  GrammarCache& grammars_of(const std::string& tenant);
  const TokenTable& table();
  /// The format of answers, without tools and with them, of a model with a chat template.
  const std::string& output_format();
  const std::string& call_format();

  const Model& model_;
  const ServerOptions& options_;
  std::optional<TokenTable> table_;
  std::string output_format_, call_format_;                        // found when one is first needed
  std::map<std::string, std::unique_ptr<GrammarCache>> grammars_;  // by tenant
};

}  // namespace vitrine::serve
