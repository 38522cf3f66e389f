// SPDX-License-Identifier: Apache-2.0
// A model in this process that answers a suite.
#include <algorithm>
#include <chrono>
#include <list>
#include <nlohmann/json.hpp>

#include "evaluation/answer_log.h"
#include "evaluation/digest.h"
#include "sample/best_tokens.h"
#include "vitrine/evaluation.h"
#include "vitrine/quality.h"

namespace vitrine {

namespace {

/// Rows of logits in a step that scores: more make a step's memory larger and nothing faster.
constexpr int kScoredRows = 64;
/// What templates take for the time, so that a prompt is the same tomorrow: 2026-01-01.
constexpr int64_t kTemplateTime = 1767225600;

DividedIds divide_chat(const Tokenizer& tokenizer, std::vector<int32_t> prompt,
                       const std::vector<std::string>& texts) {
  DividedIds divided{std::move(prompt), {}};
  for (const std::string& text : texts) {
    divided.continuations.push_back(tokenizer.encode(text, false));
  }
  return divided;
}

class ModelTarget final : public EvaluationTarget {
 public:
  ModelTarget(Model model, const ModelTargetOptions& options)
      : options_(options), server_(std::move(model), server_options(options)) {}

  std::string facts_json() const override {
    nlohmann::ordered_json facts = nlohmann::ordered_json::object();
    if (!options_.facts_json.empty()) {
      facts = nlohmann::ordered_json::parse(options_.facts_json);
    }
    const ModelSummary& summary = server_.model().summary();
    facts["path"] = server_.model().path();
    facts["architecture"] = summary.architecture;
    facts["vocab_size"] = summary.vocab_size;
    facts["max_context"] = server_.model().options().max_context;
    facts["invariant"] = summary.invariant;
    facts["form"] = takes_messages() ? "chat" : "text";
    if (!options_.drafter.empty()) facts["drafter"] = options_.drafter;
    return facts.dump();
  }

  bool takes_messages() const override { return server_.model().chat_template() != nullptr; }
  int num_parallel() const override { return options_.parallel; }

  ScoredContinuations score(const ScoringRequest& request) override {
    const Model& model = server_.model();
    ServeRequest prompt;
    prompt.messages = request.messages;
    prompt.text = request.text;
    prompt.chat = fixed(request.chat);
    const bool is_chat = !request.messages.empty();
    const DividedIds ids =
        is_chat ? divide_chat(model.tokenizer(), server_.encode(prompt), request.continuations)
                : divide_ids(request.text, request.continuations, [&](const std::string& text) {
                    return model.tokenizer().encode(text, true);
                  });
    ScoredContinuations scored;
    use_model([&](Model& used) {
      ContinuationScores scores =
          score_continuations(used, ids.context, ids.continuations, [this] { check_flag(); });
      scored.logprobs = std::move(scores.logprobs);
      scored.is_greedy = std::move(scores.is_greedy);
    });
    scored.prompt_sha256 = evaluation::ids_sha256(ids.context);
    scored.prompt_tokens = std::ssize(ids.context);
    return scored;
  }

  std::vector<TextPosition> predict(const std::string& text, int64_t window, int best) override {
    const std::vector<int32_t> ids = server_.model().tokenizer().encode(text, true);
    std::vector<TextPosition> positions;
    use_model([&](Model& model) {
      WindowOptions options;
      options.window = std::min<int64_t>(window, model.options().max_context);
      options.before_step = [this] { check_flag(); };
      predict_windows(model, ids, options, [&](const PredictedToken& token) {
        TextPosition& position = positions.emplace_back();
        position.token = token.token;
        position.logprob = static_cast<float>(token.logprob);
        keep_best(token, best, position);
      });
    });
    set_ends(ids, std::min<int64_t>(window, server_.model().options().max_context), text.size(),
             positions);
    return positions;
  }

  void submit(ServeRequest request, const std::string& item) override {
    check_flag();
    auto answer = std::make_unique<RunningAnswer>();
    answer->item = item;
    request.chat = fixed(request.chat);
    request.logprobs = 0;
    if (!options_.audit_folder.empty()) {
      answer->log = std::make_unique<evaluation::AnswerLog>(options_, request, item);
      request.audit = &answer->log->sink();
    }
    answer->result.prompt_sha256 = evaluation::ids_sha256(server_.encode(request));
    answer->request.emplace(server_.submit(std::move(request)));
    running_.push_back(std::move(answer));
  }

  std::optional<std::pair<std::string, Answer>> next_answer() override {
    while (!running_.empty()) {
      // The longest-running is waited for a moment; each of them may be the next to end.
      for (auto at = running_.begin(); at != running_.end(); ++at) {
        if (!read_events(**at)) continue;
        std::unique_ptr<RunningAnswer> ended = std::move(*at);
        running_.erase(at);
        return std::pair(ended->item, end(*ended));
      }
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      RunningAnswer& first = *running_.front();
      if (std::optional<ServeEvent> event = first.request->next_until(deadline))
        take(first, *event);
      if (is_cancelled()) cancel();
    }
    return std::nullopt;
  }

  void cancel() override {
    for (const auto& answer : running_) answer->request->cancel();
  }

 private:
  struct RunningAnswer {
    std::string item;
    std::unique_ptr<evaluation::AnswerLog> log;  // stays until the request has ended
    std::optional<ServedRequest> request;
    Answer result;
  };

  static ServerOptions server_options(const ModelTargetOptions& options) {
    ServerOptions serving;
    serving.policy = "fcfs";
    serving.max_running = options.parallel;
    serving.max_unread_events = 1 << 20;
    serving.drafter = options.drafter;
    serving.step_seconds = 2;  // nobody waits for a token
    return serving;
  }

  static ChatOptions fixed(ChatOptions chat) {
    if (!chat.now) chat.now = kTemplateTime;
    return chat;
  }

  bool is_cancelled() const { return options_.cancelled != nullptr && *options_.cancelled; }
  void check_flag() const {
    if (is_cancelled()) throw Error(ErrorKind::kCancelled, "the evaluation was cancelled");
  }

  void use_model(const std::function<void(Model&)>& work) {
    // What answers left in the cache holds blocks that scoring may need.
    if (has_answered_ && running_.empty()) server_.clear_cache();
    has_answered_ = false;
    server_.use_model(work);
  }

  void keep_best(const PredictedToken& token, int best, TextPosition& position) {
    for (const int32_t id : best_.find(token.logits, static_cast<size_t>(best))) {
      const double logprob = double{token.logits[static_cast<size_t>(id)]} - token.log_total;
      position.best.emplace_back(id, static_cast<float>(logprob));
    }
  }

  /// Tells where each predicted token ends. What begins the text without being of it (a token that
  /// the tokenizer adds) makes the ids' bytes more than the text's.
  void set_ends(std::span<const int32_t> ids, int64_t window, size_t text_bytes,
                std::vector<TextPosition>& positions) const {
    const Tokenizer& tokenizer = server_.model().tokenizer();
    int64_t end = static_cast<int64_t>(text_bytes);
    for (const int32_t id : ids) end -= std::ssize(tokenizer.token_bytes(id));
    end = std::min<int64_t>(end, 0);
    size_t at = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      end += std::ssize(tokenizer.token_bytes(ids[i]));
      if (i % static_cast<size_t>(window) != 0 && at < positions.size()) positions[at++].end = end;
    }
  }

  /// Reads what has come; true: the answer has ended.
  bool read_events(RunningAnswer& answer) {
    const auto now = std::chrono::steady_clock::now();
    while (!answer.request->is_finished()) {
      std::optional<ServeEvent> event = answer.request->next_until(now);
      if (!event) return false;
      take(answer, *event);
    }
    return true;
  }

  static void take(RunningAnswer& answer, const ServeEvent& event) {
    Answer& result = answer.result;
    switch (event.kind) {
      case ServeEvent::Kind::kRestart:
        result.text.clear(), result.tokens.clear(), result.logprobs.clear();
        break;
      case ServeEvent::Kind::kToken:
        result.text += event.text;
        result.tokens.push_back(event.token);
        if (event.logprobs) result.logprobs.push_back(event.logprobs->logprob);
        break;
      case ServeEvent::Kind::kPrompt: break;
      case ServeEvent::Kind::kFinish:
        result.text += event.text;
        result.counts = event.counts;
        if (event.answer) result.parts = *event.answer;
        result.stop = event.error                              ? "error"
                      : event.reason == StopReason::kCancelled ? "cancelled"
                      : event.reason == StopReason::kLength    ? "length"
                                                               : "stop";
        if (event.error) result.error = event.error->what();
        // A step that was cancelled is nobody's answer.
        if (event.error && event.error->kind() == ErrorKind::kCancelled) result.stop = "cancelled";
        break;
    }
  }

  Answer end(RunningAnswer& answer) {
    has_answered_ = true;
    if (answer.log) answer.result.audit = answer.log->finish(answer.result.stop);
    return std::move(answer.result);
  }

  const ModelTargetOptions options_;
  Server server_;
  std::list<std::unique_ptr<RunningAnswer>> running_;
  bool has_answered_ = false;
  BestTokens best_;
};

}  // namespace

void prepare_for_evaluation(ModelOptions& options, int parallel) {
  options.engine.keep_logits = true;
  prepare_for_serving(options, parallel);
  options.engine.max_logit_rows = std::max(options.engine.max_logit_rows,
                                           std::min(options.engine.max_step_tokens, kScoredRows));
}

std::unique_ptr<EvaluationTarget> make_model_target(Model model,
                                                    const ModelTargetOptions& options) {
  return std::make_unique<ModelTarget>(std::move(model), options);
}

}  // namespace vitrine
