// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "evaluation/ask.h"
#include "evaluation/result_file.h"
#include "vitrine/checkpoint.h"
#include "vitrine/lm_eval.h"

namespace vitrine {

namespace {

using evaluation::Item;
using evaluation::Json;
using evaluation::Task;

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// As Python's str() writes a float.
std::string number_text(double value) { return dump(Json(value)); }

/// Whether conversations were written by a chat template.
bool took_messages(const Evaluation& evaluation) {
  const Json facts = Json::parse(evaluation.target_json);
  return facts.value("form", std::string("chat")) == "chat";
}

std::string prompt_text(const std::vector<ChatMessage>& messages, const std::string& text) {
  if (messages.empty()) return text;
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    Json one = {{"role", message.role}, {"content", message.content}};
    if (!message.fields_json.empty()) one.update(Json::parse(message.fields_json));
    list.push_back(std::move(one));
  }
  return dump(list);
}

Json doc_of(const Item& item) {
  Json doc = {{"id", item.id}};
  doc.update(item.data);
  return doc;
}

/// A sample's fields that do not depend on what was asked.
Json begin_sample(const Item& item, size_t number, const std::string& target) {
  return {{"doc_id", number}, {"doc", doc_of(item)}, {"target", target}};
}

void end_sample(const EvaluatedItem& result, const std::string& prompt, const Json& metrics,
                Json& sample) {
  Json names = Json::array();
  for (const auto& [name, value] : metrics.items()) names.push_back(name);
  sample["metrics"] = names;
  sample["doc_hash"] = sha256_of_text(dump(sample["doc"], 2));
  sample["prompt_hash"] = sha256_of_text(prompt);
  sample["target_hash"] = sha256_of_text(sample["target"].get<std::string>());
  sample.update(metrics);
  if (!result.error.empty()) sample["error"] = result.error;
}

Json answer_sample(const Task& task, const Item& item, size_t number, const EvaluatedItem& result,
                   bool takes_messages) {
  const ServeRequest request = evaluation::answer_request(task, item, takes_messages);
  const std::string prompt = prompt_text(request.messages, request.text);
  Json sample = begin_sample(item, number, result.expected);
  const bool is_sampled = request.sampler.temperature > 0;
  const Json asked = {{"until", request.stop},
                      {"max_gen_toks", request.max_new_tokens},
                      {"do_sample", is_sampled},
                      {"temperature", request.sampler.temperature}};
  sample["arguments"] = {{"gen_args_0", {{"arg_0", prompt}, {"arg_1", asked}}}};
  sample["resps"] = Json::array({Json::array({result.answer})});
  sample["filtered_resps"] = Json::array({result.extracted});
  sample["filter"] = task.told.scorer;
  Json metrics = {{"score", result.score}};
  for (const auto& [name, value] : result.parts) metrics[name] = value;
  end_sample(result, prompt, metrics, sample);
  return sample;
}

Json choice_sample(const Task& task, const Item& item, size_t number, const EvaluatedItem& result,
                   bool takes_messages) {
  const ScoringRequest request = evaluation::scoring_request(task, item, takes_messages);
  const std::string prompt = prompt_text(request.messages, request.text);
  Json sample = begin_sample(item, number, std::to_string(result.right_choice));
  Json arguments = Json::object(), told = Json::array(), filtered = Json::array();
  for (size_t i = 0; i < result.choice_logprobs.size(); ++i) {
    arguments["gen_args_" + std::to_string(i)] = {{"arg_0", prompt},
                                                  {"arg_1", request.continuations.at(i)}};
    const Json pair = {number_text(result.choice_logprobs[i]), "None"};
    told.push_back(Json::array({pair}));
    filtered.push_back(pair);
  }
  sample["arguments"] = arguments;
  sample["resps"] = told;
  sample["filtered_resps"] = filtered;
  sample["filter"] = "none";
  const auto best = std::ranges::max_element(result.choice_logprobs);
  const bool is_best = best - result.choice_logprobs.begin() == result.right_choice;
  const bool has_answer = !result.choice_logprobs.empty();
  end_sample(result, prompt, {{"acc", has_answer && is_best ? 1.0 : 0.0}, {"score", result.score}},
             sample);
  return sample;
}

// lm-eval's word_perplexity counts the pieces between runs of white space.
size_t num_words(std::string_view text) {
  size_t count = 1;
  bool was_space = false;
  for (const char c : text) {
    const bool is_space = std::string_view(" \t\n\r\f\v").find(c) != std::string_view::npos;
    if (is_space && !was_space) ++count;
    was_space = is_space;
  }
  return count;
}

Json text_sample(const Item& item, size_t number, const EvaluatedItem& result) {
  const std::string text = item.data["text"].get<std::string>();
  const double sum = std::accumulate(
      result.positions.begin(), result.positions.end(), 0.0,
      [](double so_far, const TextPosition& one) { return so_far + double{one.logprob}; });
  Json sample = begin_sample(item, number, text);
  sample["arguments"] = {{"gen_args_0", {{"arg_0", text}}}};
  sample["resps"] = Json::array({Json::array({number_text(sum)})});
  sample["filtered_resps"] = Json::array({number_text(sum)});
  sample["filter"] = "none";
  const Json words = Json::array({sum, num_words(text)});
  const Json bytes = Json::array({sum, text.size()});
  end_sample(result, text,
             {{"word_perplexity", words}, {"byte_perplexity", bytes}, {"bits_per_byte", bytes}},
             sample);
  return sample;
}

}  // namespace

void write_lm_eval_samples(const Evaluation& evaluation, const Suite& suite,
                           const std::string& folder) {
  if (evaluation.suite_digest != suite.digest()) {
    throw Error(ErrorKind::kInvalidArgument,
                evaluation.path + ": its suite '" + evaluation.suite + "' has the digest " +
                    evaluation.suite_digest + ", and '" + suite.name() + "' has " + suite.digest() +
                    "; expected the same suite, tasks and numbers of items");
  }
  std::map<std::pair<std::string, std::string>, const EvaluatedItem*> results;
  for (const EvaluatedItem& item : evaluation.items) results[{item.task, item.id}] = &item;
  const bool takes_messages = took_messages(evaluation);
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) throw Error(ErrorKind::kIo, folder + ": " + problem.message());
  for (const Task& task : suite.data().tasks) {
    std::string lines;
    for (size_t i = 0; i < task.items.size(); ++i) {
      const Item& item = task.items[i];
      const auto found = results.find({task.told.name, item.id});
      if (found == results.end()) continue;
      const EvaluatedItem& result = *found->second;
      switch (task.told.kind) {
        case TaskKind::kAnswer:
          lines += dump(answer_sample(task, item, i, result, takes_messages));
          break;
        case TaskKind::kChoice:
          lines += dump(choice_sample(task, item, i, result, takes_messages));
          break;
        case TaskKind::kText: lines += dump(text_sample(item, i, result)); break;
      }
      lines += '\n';
    }
    if (!lines.empty()) {
      write_file_atomically(folder + "/samples_" + task.told.name + ".jsonl", lines);
    }
  }
}

}  // namespace vitrine
