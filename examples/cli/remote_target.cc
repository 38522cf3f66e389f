// SPDX-License-Identifier: Apache-2.0
#include "remote_target.h"

#include <fmt/format.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "api_scores.h"

namespace cli {

namespace {

using vitrine::Error;
using vitrine::ErrorKind;

/// Facts of a server that stay the same while it has the same model: names and sizes.
void add_facts(const ApiJson& from, const std::vector<const char*>& names,
               nlohmann::ordered_json& facts) {
  constexpr size_t kMostBytes = 256;
  for (const char* name : names) {
    const ApiJson* found = find_value(from, name);
    if (found == nullptr) continue;
    const bool is_short =
        found->is_string() && found->get_ref<const std::string&>().size() < kMostBytes;
    if (is_short || found->is_number() || found->is_boolean()) facts[name] = *found;
  }
}

class RemoteTarget final : public vitrine::EvaluationTarget {
 public:
  RemoteTarget(ApiPlace place, const EvalTargetOptions& options)
      : client_(std::move(place)),
        parallel_(static_cast<size_t>(options.parallel)),
        scores_(client_, server_) {
    find_model(options.api_model);
    find_properties();
    find_form(options.api_form);
  }
  ~RemoteTarget() override {
    client_.cancel();
    for (Running& each : running_) each.thread.join();
  }

  std::string facts_json() const override { return facts_.dump(); }
  bool takes_messages() const override { return server_.is_chat; }
  int num_parallel() const override { return static_cast<int>(parallel_); }
  vitrine::ScoredContinuations score(const vitrine::ScoringRequest& request) override {
    return scores_.score(request);
  }
  std::vector<vitrine::TextPosition> predict(const std::string& text, int64_t window,
                                             int best) override {
    return scores_.predict(text, window, best);
  }

  void submit(vitrine::ServeRequest request, const std::string& item) override {
    const std::string body = answer_body(server_, request);
    std::unique_lock lock(mutex_);
    has_ended_.wait(lock, [&] { return num_running_ < parallel_; });
    ++num_running_;
    Running& running = running_.emplace_back();
    running.item = item;
    running.thread = std::thread(
        [this, &running, body, is_chat = !request.messages.empty(), most = request.max_new_tokens] {
          Outcome outcome = answer(body, is_chat, most);
          const std::lock_guard ended(mutex_);
          running.outcome = std::move(outcome);
          --num_running_;
          has_ended_.notify_all();
        });
  }

  std::optional<std::pair<std::string, Answer>> next_answer() override {
    std::unique_lock lock(mutex_);
    if (running_.empty()) return std::nullopt;
    const auto ended = [&] {
      return std::ranges::find_if(running_, [](const Running& one) { return !!one.outcome; });
    };
    has_ended_.wait(lock, [&] { return ended() != running_.end(); });
    const auto found = ended();
    std::list<Running> one;
    one.splice(one.begin(), running_, found);
    lock.unlock();
    one.front().thread.join();
    Outcome outcome = std::move(*one.front().outcome);
    std::string item = std::move(one.front().item);
    if (outcome.problem) std::rethrow_exception(outcome.problem);
    return std::pair(std::move(item), std::move(outcome.answer));
  }

  void cancel() override { client_.cancel(); }

 private:
  struct Outcome {
    Answer answer;
    std::exception_ptr problem;  // ends the run
  };
  struct Running {
    std::string item;
    std::thread thread;
    std::optional<Outcome> outcome;
  };

  Outcome answer(const std::string& body, bool is_chat, int most_tokens) {
    const std::string url = client_.place().url + (is_chat ? "/chat/completions" : "/completions");
    Outcome outcome;
    try {
      AnswerReader reader(url, most_tokens);
      ApiReply reply = client_.post(url, body, &reader);
      // llama-server has no log-probabilities beside tools: the answer counts more.
      if (reply.status == 400 && reply.body.find("logprobs") != std::string::npos) {
        ApiJson plain = ApiJson::parse(body);
        plain.erase("logprobs");
        plain.erase("top_logprobs");
        reply = client_.post(url, plain.dump(), &reader);
      }
      if (reply.status != 200) throw_status(url, reply);
      outcome.answer = reader.answer();
    } catch (const Error& error) {
      switch (error.kind()) {
        case ErrorKind::kCancelled: outcome.answer.stop = "cancelled"; break;
        case ErrorKind::kInvalidArgument:
        case ErrorKind::kUnsupported:
          outcome.answer.stop = "error";
          outcome.answer.error = error.what();
          break;
        default: outcome.problem = std::current_exception(); break;
      }
    } catch (...) {
      outcome.problem = std::current_exception();
    }
    return outcome;
  }

  void find_model(const std::string& wanted) {
    const std::string url = client_.place().url + "/models";
    facts_ = {{"server", client_.place().url}};
    const ApiReply reply = client_.get(url);
    if (!reply.is_fine()) {
      if (reply.status != 404 || wanted.empty()) throw_status(url, reply);
      server_.model = wanted;  // a server without a list
      facts_["model"] = wanted;
      return;
    }
    const ApiJson json = parse_reply(reply.body, url);
    std::string names;
    for (const ApiJson& model : list_of(json, "data", url)) {
      if (!model.is_object()) refuse_reply(url, "data", &model, "objects");
      const std::string name = text_of(model, "id", url);
      if (name.empty()) refuse_reply(url, "data", &model, "an 'id' each");
      names += (names.empty() ? "" : ", ") + name.substr(0, 80);
      if (!wanted.empty() && name != wanted) continue;
      server_.model = name;
      server_.maker = text_of(model, "owned_by", url);
      server_.max_context = count_of(model, "max_model_len", url);
      facts_["model"] = name;
      add_facts(model, {"owned_by", "root", "max_model_len"}, facts_);
      if (const ApiJson* meta = find_value(model, "meta"); meta != nullptr && meta->is_object()) {
        add_facts(*meta, {"n_ctx_train", "n_vocab", "n_embd", "n_params", "size", "ftype"}, facts_);
      }
      return;
    }
    if (wanted.empty()) refuse_reply(url, "data", find_value(json, "data"), "at least one model");
    refuse(fmt::format("--api-model '{}' is none of the server's models: {}", wanted,
                       names.substr(0, 400)));
  }

  // llama-server's and Vitrine's; others have none.
  void find_properties() {
    const std::string url = client_.place().root + "/props";
    const ApiReply reply = client_.get(url);
    if (!reply.is_fine() || reply.body.empty() || reply.body.front() != '{') return;
    const ApiJson json = parse_reply(reply.body, url);
    add_facts(json, {"build_info", "model_path", "bos_token", "eos_token"}, facts_);
    const ApiJson* source = find_value(json, "chat_template");
    if (source == nullptr || !source->is_string()) return;
    server_.is_chat = !source->get_ref<const std::string&>().empty();
    if (server_.is_chat) {
      facts_["chat_template_sha256"] =
          vitrine::sha256_of_text(source->get_ref<const std::string&>());
    }
  }

  // One short answer shows whether the server takes conversations, and tells log-probabilities.
  void find_form(const std::string& form) {
    if (form != "auto") server_.is_chat = form == "chat";
    if (server_.is_chat && !try_answer(true) && form == "auto") server_.is_chat = false;
    if (!server_.is_chat) try_answer(false);
    facts_["form"] = server_.is_chat ? "chat" : "text";
    facts_["logprobs"] = server_.has_logprobs;
  }

  bool try_answer(bool is_chat) {
    vitrine::ServeRequest request;
    if (is_chat) {
      request.messages.push_back({"user", "Hi"});
    } else {
      request.text = "Hi";
    }
    request.max_new_tokens = 1;
    request.sampler.temperature = 0;
    for (const bool has_logprobs : {true, false}) {
      server_.has_logprobs = has_logprobs;
      const std::string url =
          client_.place().url + (is_chat ? "/chat/completions" : "/completions");
      AnswerReader reader(url, request.max_new_tokens);
      const ApiReply reply = client_.post(url, answer_body(server_, request), &reader);
      if (reply.status == 200) return true;
      if (reply.status == 401 || reply.status == 403) throw_status(url, reply);
    }
    server_.has_logprobs = true;
    return false;
  }

  ApiClient client_;
  const size_t parallel_;
  ApiServer server_;
  ApiScores scores_;
  nlohmann::ordered_json facts_;
  std::mutex mutex_;
  std::condition_variable has_ended_;
  std::list<Running> running_;
  size_t num_running_ = 0;
};

}  // namespace

std::unique_ptr<vitrine::EvaluationTarget> open_remote_target(const EvalTargetOptions& options) {
  return std::make_unique<RemoteTarget>(
      read_api_place(options.model, options.api_key, options.api_timeout, options.api_retries),
      options);
}

}  // namespace cli
