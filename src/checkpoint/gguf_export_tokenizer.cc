// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json as the keys of a GGUF file.
#include <optional>

#include "gguf_export.h"
#include "gguf_pre_tokenizer.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

using Json = nlohmann::json;

// Values of `tokenizer.ggml.token_type`.
constexpr int32_t kNormalType = 1, kControlType = 3, kUserDefinedType = 4, kUnusedType = 5;

/// How a tokenizer cuts words, without what changes no cut.
Json plain_steps(const Json& pre_tokenizer) {
  Json steps = Json::array();
  const auto add = [&](const Json& step) {
    if (step.value("type", "") != "ByteLevel") {
      Json plain = step;
      plain.erase("trim_offsets");
      steps.push_back(plain);
      return;
    }
    // The pattern of GPT-2 is what this step has of its own.
    if (step.value("use_regex", true)) {
      GgufPreTokenizer gpt2;
      find_gguf_pre_tokenizer("gpt-2", gpt2);
      steps.push_back(gpt2.pre_tokenizer["pretokenizers"][0]);
    }
    steps.push_back(step.value("add_prefix_space", false) ? "bytes behind a space" : "bytes");
  };
  if (!pre_tokenizer.is_object()) return steps;
  if (pre_tokenizer.value("type", "") == "Sequence") {
    const Json parts = pre_tokenizer.value("pretokenizers", Json::array());
    for (const Json& step : parts) add(step);
  } else {
    add(pre_tokenizer);
  }
  return steps;
}

class TokenizerKeys {
 public:
  TokenizerKeys(const Checkpoint& checkpoint, const ModelConfig& config, GgufWriter& writer)
      : place_(checkpoint.path() + ": tokenizer.json"),
        vocab_size_(config.vocab_size),
        writer_(writer),
        json_(Json::parse(checkpoint.tokenizer_json(), nullptr, false)),
        config_(Json::parse(checkpoint.tokenizer_config_json(), nullptr, false)) {}

  void set() {
    if (!json_.is_object()) throw_bad_file(place_ + " is no JSON object; expected a tokenizer");
    const Json model = json_.value("model", Json());
    if (!model.is_object() || model.value("type", "") != "BPE" ||
        model.value("byte_fallback", false)) {
      throw_unsupported(place_ +
                        ": the model is no byte-level BPE; expected one, which is what is "
                        "written to GGUF files");
    }
    writer_.set_string("tokenizer.ggml.model", "gpt2");
    writer_.set_string("tokenizer.ggml.pre", find_pre(model.value("ignore_merges", false)));
    set_tokens(model);
    set_merges(model);
    set_ids();
    const Json chat = config_.is_object() ? config_.value("chat_template", Json()) : Json();
    if (chat.is_string()) writer_.set_string("tokenizer.chat_template", chat.get<std::string>());
  }

 private:
  std::string find_pre(bool ignores_merges) const {
    const Json own = plain_steps(json_.value("pre_tokenizer", Json()));
    const Json normalizer = json_.value("normalizer", Json());
    const bool is_nfc = normalizer.is_object() && normalizer.value("type", "") == "NFC";
    if (!normalizer.is_null() && !is_nfc) {
      throw_unsupported(place_ + ": the normalizer is not written; expected NFC, or none");
    }
    // A text in another form is rare, so that a name that differs in this alone is taken second.
    for (const bool needs_form : {true, false}) {
      const std::string_view name = name_of_gguf_pre_tokenizer([&](const GgufPreTokenizer& known) {
        return (!needs_form || known.normalizes_nfc == is_nfc) &&
               known.ignores_merges == ignores_merges && plain_steps(known.pre_tokenizer) == own;
      });
      if (!name.empty()) return std::string(name);
    }
    throw_unsupported(place_ +
                      ": the pre_tokenizer cuts words as no name of GGUF files does; "
                      "expected that of a published model");
  }

  void set_tokens(const Json& model) {
    tokens_.resize(static_cast<size_t>(vocab_size_));
    std::vector<int32_t> types(tokens_.size(), kUnusedType);
    const auto put = [&](const Json& id, const std::string& text, int32_t type) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= tokens_.size()) {
        throw_bad_file(place_ + ": token " + quote_text(text) + " has the id " + id.dump() +
                       "; expected one below " + std::to_string(tokens_.size()));
      }
      tokens_[id.get<size_t>()] = text;
      types[id.get<size_t>()] = type;
    };
    const Json vocab = model.value("vocab", Json::object());
    const Json added = json_.value("added_tokens", Json::array());
    for (const auto& [text, id] : vocab.items()) {
      put(id, text, kNormalType);
    }
    for (const Json& token : added) {
      put(token.value("id", Json()), token.value("content", ""),
          token.value("special", false) ? kControlType : kUserDefinedType);
    }
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types[id] == kUnusedType) tokens_[id] = "[PAD" + std::to_string(id) + "]";
    }
    writer_.set_strings("tokenizer.ggml.tokens", tokens_);
    writer_.set_i32s("tokenizer.ggml.token_type", types);
  }

  void set_merges(const Json& model) {
    std::vector<std::string> merges;
    const Json listed = model.value("merges", Json::array());
    for (const Json& merge : listed) {
      if (merge.is_string()) {
        merges.push_back(merge.get<std::string>());
      } else if (merge.is_array() && merge.size() == 2) {
        merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
      } else {
        throw_bad_file(place_ + ": a merge is " + merge.dump() + "; expected two texts");
      }
    }
    writer_.set_strings("tokenizer.ggml.merges", merges);
  }

  std::optional<size_t> id_of(const char* field) const {
    if (!config_.is_object()) return std::nullopt;
    Json token = config_.value(field, Json());
    if (token.is_object()) token = token.value("content", Json());
    if (!token.is_string()) return std::nullopt;
    const auto found = std::ranges::find(tokens_, token.get<std::string>());
    if (found == tokens_.end()) return std::nullopt;
    return static_cast<size_t>(found - tokens_.begin());
  }

  void set_ids() {
    for (const auto& [field, key] : {std::pair{"bos_token", "tokenizer.ggml.bos_token_id"},
                                     {"eos_token", "tokenizer.ggml.eos_token_id"},
                                     {"pad_token", "tokenizer.ggml.padding_token_id"},
                                     {"unk_token", "tokenizer.ggml.unknown_token_id"}}) {
      if (const auto id = id_of(field)) writer_.set_u32(key, *id);
    }
    // The template of the post-processor is what adds tokens.
    const Json post = json_.value("post_processor", Json());
    const std::string text = post.is_object() ? post.dump() : "";
    const auto adds = [&](const char* field) {
      const auto id = id_of(field);
      return id && text.find("\"SpecialToken\":{\"id\":" + Json(tokens_[*id]).dump()) != text.npos;
    };
    writer_.set_bool("tokenizer.ggml.add_bos_token", adds("bos_token"));
    writer_.set_bool("tokenizer.ggml.add_eos_token",
                     adds("eos_token") && id_of("eos_token") != id_of("bos_token"));
  }

  std::string place_;
  int64_t vocab_size_;
  GgufWriter& writer_;
  Json json_, config_;
  std::vector<std::string> tokens_;
};

}  // namespace

void set_tokenizer_keys(const Checkpoint& checkpoint, const ModelConfig& config,
                        GgufWriter& writer) {
  TokenizerKeys(checkpoint, config, writer).set();
}

}  // namespace vitrine::checkpoint
