// SPDX-License-Identifier: Apache-2.0
// llama-server's /infill: what stands between two texts of a file, by the tokens that code models
// were trained on for that.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/json_text.h"
#include "http/infill_routes.json.h"
#include "http/native_answer.h"
#include "http/plain_text.h"
#include "serve/openai_fields.h"

namespace vitrine::http {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;
using Ids = std::vector<int32_t>;

/// The ids of a vocabulary's marks; -1: it has none.
struct InfillMarks {
  int32_t prefix, suffix, middle, repository, file;
  Ids ends;  ///< those that end what is filled in
};

int32_t find_mark(const Tokenizer& tokenizer, std::initializer_list<const char*> texts) {
  for (const char* text : texts) {
    const int32_t id = tokenizer.token_id(text);
    if (id >= 0) return id;
  }
  return -1;
}

/// Reads them as Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM and Falcon spell them.
InfillMarks find_marks(const Tokenizer& tokenizer) {
  InfillMarks marks;
  marks.prefix =
      find_mark(tokenizer, {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>",
                            "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"});
  marks.suffix =
      find_mark(tokenizer, {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",
                            "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"});
  marks.middle =
      find_mark(tokenizer, {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",
                            "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"});
  marks.repository =
      find_mark(tokenizer, {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"});
  marks.file = find_mark(tokenizer, {"<|file_sep|>"});
  for (const char* text : {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<EOT>", "▁<EOT>",
                           "<|endoftext|>", "<|end_of_text|>"}) {
    if (const int32_t id = tokenizer.token_id(text); id >= 0) marks.ends.push_back(id);
  }
  for (const int32_t id : {marks.repository, marks.file}) {
    if (id >= 0) marks.ends.push_back(id);
  }
  std::string missing;
  if (marks.prefix < 0) missing += "prefix token is missing. ";
  if (marks.suffix < 0) missing += "suffix token is missing. ";
  if (marks.middle < 0) missing += "middle token is missing. ";
  if (!missing.empty()) {
    throw Error(ErrorKind::kUnsupported, "Infill is not supported by this model: " + missing);
  }
  return marks;
}

/// What a file's neighbours say, before it.
Ids read_extra(const Fields& fields, const Tokenizer& tokenizer, const InfillMarks& marks) {
  Ids extra;
  const auto add = [&](const std::string& text) {
    const Ids ids = plain_ids(tokenizer, text);
    extra.insert(extra.end(), ids.begin(), ids.end());
  };
  if (marks.repository >= 0) {
    extra.push_back(marks.repository);
    add("myproject\n");
  }
  if (const json* chunks = fields.find("input_extra")) {
    constexpr const char* kForm = "a list of objects with a 'text' and perhaps a 'filename'";
    if (!chunks->is_array()) refuse_field("input_extra", *chunks, kForm);
    for (const json& chunk : *chunks) {
      if (!chunk.is_object() || !chunk.contains("text") || !chunk["text"].is_string()) {
        refuse_field("input_extra", chunk, kForm);
      }
      std::string name = "tmp";
      Fields(chunk).read("filename", name);
      if (marks.file >= 0) {
        extra.push_back(marks.file);
        add(name + "\n");
      } else {
        add("\n\n--- snippet ---\n\n");
      }
      add(chunk["text"].get<std::string>());
    }
  }
  if (marks.file >= 0) {
    extra.push_back(marks.file);
    add("filename\n");
  }
  return extra;
}

/// Takes off the beginning of what is longer.
void keep_end(Ids& ids, int64_t most) {
  const int64_t cut = std::ssize(ids) - std::max<int64_t>(most, 0);
  if (cut > 0) ids.erase(ids.begin(), ids.begin() + cut);
}

/// Writes the prompt. Where the context cannot hold all, the neighbours give way first, then what
/// is far from the gap: the suffix has a quarter of the room.
Ids write_infill(const Fields& fields, const Model& model, const InfillMarks& marks) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto read = [&](const char* name, bool must) {
    std::string text;
    if (must && !fields.has(name)) refuse_field(name, nullptr, "a text");
    fields.read(name, text);
    return plain_ids(tokenizer, text);
  };
  Ids prefix = read("input_prefix", true), suffix = read("input_suffix", true);
  const Ids prompt = read("prompt", false);
  Ids extra = read_extra(fields, tokenizer, marks);
  const Ids begin = tokenizer.encode("", true);
  const int64_t context = model.options().max_context;
  int answer = -1;
  fields.read("n_predict", answer, -2, 1 << 30);
  const int64_t kept = answer < 0 ? context / 4 : std::min<int64_t>(answer, context / 2);
  const int64_t marks_and_prompt = 4 + std::ssize(prompt);  // the three marks, and a first token
  const int64_t room = std::max<int64_t>(context - kept - marks_and_prompt, 0);
  if (std::ssize(prefix) + std::ssize(suffix) > room) {
    const int64_t behind = std::max(room / 4, room - std::ssize(prefix));
    suffix.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(suffix), behind)));
    keep_end(prefix, room - std::ssize(suffix));
  }
  keep_end(extra, room - std::ssize(prefix) - std::ssize(suffix));
  Ids ids;
  const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  if (!begin.empty()) ids.push_back(begin.front());
  add(extra);
  ids.push_back(marks.prefix);
  add(prefix);
  add(prompt);
  ids.push_back(marks.suffix);
  add(suffix);
  ids.push_back(marks.middle);
  return ids;
}

Reply infill(const House& house, const Request& request) {
  const json body = parse_json_object(request.body, "the body");
  const Fields fields(body);
  std::string name;
  fields.read("model", name);
  const Model& model = house.server->model(house.find_model(name));
  const InfillMarks marks = find_marks(model.tokenizer());
  NativeRequest read = read_native_request(house, body, {write_infill(fields, model, marks)});
  for (ServeRequest& one : read.requests) {
    one.stop_token_ids.insert(one.stop_token_ids.end(), marks.ends.begin(), marks.ends.end());
  }
  return native_reply(house, request, std::move(read));
}

VITRINE_REGISTER_ROUTES(kInfillRoutesJson, {
                                               {"POST", "/infill", Access::kKey, infill},
                                           });

}  // namespace

}  // namespace vitrine::http
