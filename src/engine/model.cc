// SPDX-License-Identifier: Apache-2.0
#include "vitrine/model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "checkpoint/model_config.h"

namespace vitrine {

namespace fs = std::filesystem;

namespace {

/// Whether a regular file is meant as a federation file: a GGUF file begins with its own four
/// letters.
bool is_federation_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (fs::path(path).extension() == ".json") return true;
  std::ifstream file(path, std::ios::binary);
  char first = 0;
  while (file.get(first) && std::string_view(" \t\r\n").find(first) != std::string_view::npos) {
  }
  return file.good() && first == '{';
}

void require_path(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) || error) return;
  throw Error(
      ErrorKind::kInvalidArgument,
      "model '" + path +
          "' is not there; expected a folder with config.json and model.safetensors, a .gguf "
          "file, or a federation file (.json)");
}

}  // namespace

struct Model::Impl {
  Impl(const std::string& path, const Checkpoint& checkpoint, const ModelOptions& options)
      : path(path), tokenizer(open_tokenizer(checkpoint, parse_model_config(checkpoint))) {
    const std::string config = checkpoint.tokenizer_config_json();
    if (options.chat_template) {
      chat = ChatTemplate::parse(*options.chat_template, "model option 'chat_template'", config);
    } else {
      read_own_template(config, checkpoint.tokenizer_config_name());
    }
    if (chat) end_ids = vitrine::end_of_turn_ids(tokenizer, *chat);
  }

  // A model whose template cannot be read still continues texts.
  void read_own_template(const std::string& config, const std::string& name) {
    try {
      chat = ChatTemplate::from_tokenizer_config(config, name);
    } catch (const Error& error) {
      if (!error.is_user_error()) throw;
      chat_problem = error;
    }
  }

  const ChatTemplate* chat_template() const {
    if (chat_problem) throw *chat_problem;
    return chat ? &*chat : nullptr;
  }

  /// What runs the model, whichever it is.
  Stepper& stepper() const {
    return federation != nullptr ? static_cast<Stepper&>(*federation) : *engine;
  }

  std::string path;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::optional<Error> chat_problem;
  std::vector<int32_t> end_ids;
  std::unique_ptr<Engine> engine;  // null of a federation
  std::unique_ptr<Federation> federation;
  std::once_flag has_table;
  TokenTable table;  // once has_table says so
};

namespace {

void limit_context(int64_t models_limit, EngineOptions& options) {
  if (options.max_context != 0) return;
  options.max_context =
      static_cast<int>(std::min<int64_t>(models_limit, ModelOptions::kDefaultContext));
}

/// With its members checked. Each file is hashed once, though Federation::load checks them again.
FederationSpec load_spec(const std::string& path) {
  FederationSpec spec = FederationSpec::load(path);
  const auto known = std::make_shared<std::map<std::string, std::string>>();
  spec.hash_file = [known](const std::string& file) {
    std::string& hash = (*known)[file];
    if (hash.empty()) hash = sha256_of_file(file);
    return hash;
  };
  spec.check_members();
  return spec;
}

/// The fewest positions that any specialist's model has.
int64_t context_of(const FederationSpec& spec) {
  int64_t fewest = ModelOptions::kDefaultContext;
  for (const SpecialistSpec& specialist : spec.specialists) {
    const ModelConfig config = parse_model_config(Checkpoint::open(specialist.model));
    fewest = std::min(fewest, config.max_position_embeddings);
    if (!spec.base.empty()) break;  // all have that one's
  }
  return fewest;
}

}  // namespace

Model Model::open(const std::string& path, const ModelOptions& options) {
  require_path(path);
  EngineOptions engine_options = options.engine;
  if (is_federation_file(path)) {
    const FederationSpec spec = load_spec(path);
    limit_context(context_of(spec), engine_options);
    auto impl = std::make_unique<Impl>(path, Checkpoint::open(spec.specialists[0].model), options);
    impl->federation = Federation::load(spec, engine_options);
    return Model(std::move(impl));
  }
  const Checkpoint checkpoint = Checkpoint::open(path);
  limit_context(parse_model_config(checkpoint).max_position_embeddings, engine_options);
  auto impl = std::make_unique<Impl>(path, checkpoint, options);
  impl->engine = Engine::load(path, engine_options);
  return Model(std::move(impl));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const std::string& Model::path() const { return impl_->path; }
const Tokenizer& Model::tokenizer() const { return impl_->tokenizer; }
const ChatTemplate* Model::chat_template() const { return impl_->chat_template(); }
const ModelSummary& Model::summary() const { return impl_->stepper().summary(); }
const EngineOptions& Model::options() const { return impl_->stepper().options(); }
Engine* Model::engine() { return impl_->engine.get(); }
const Engine* Model::engine() const { return impl_->engine.get(); }
Federation* Model::federation() { return impl_->federation.get(); }
const Federation* Model::federation() const { return impl_->federation.get(); }

std::vector<int32_t> Model::encode_chat(std::span<const ChatMessage> messages,
                                        const ChatOptions& options) const {
  const ChatTemplate* chat = chat_template();
  if (chat == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                path() +
                    ": the model has no chat template; expected one that was trained on "
                    "conversations, or ModelOptions::chat_template");
  }
  return tokenizer().encode(chat->render(messages, options), /*add_special_tokens=*/false);
}

const std::vector<int32_t>& Model::end_of_turn_ids() const { return impl_->end_ids; }

TokenTable Model::token_table() const {
  std::call_once(impl_->has_table, [this] {
    std::vector<int32_t> ends = summary().eos_token_ids;
    for (const int32_t id : end_of_turn_ids()) {
      if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    }
    impl_->table = make_token_table(tokenizer(), summary().vocab_size, std::move(ends));
  });
  return impl_->table;
}

SequenceId Model::create_sequence(int adapter) { return impl_->stepper().create_sequence(adapter); }
SequenceId Model::fork(SequenceId sequence) { return impl_->stepper().fork(sequence); }
void Model::truncate(SequenceId sequence, int64_t length) {
  impl_->stepper().truncate(sequence, length);
}
void Model::release(SequenceId sequence) { impl_->stepper().release(sequence); }
int64_t Model::length(SequenceId sequence) const { return impl_->stepper().length(sequence); }
std::span<const int32_t> Model::tokens(SequenceId sequence) const {
  return impl_->stepper().tokens(sequence);
}
void Model::keep(SequenceId sequence, int64_t count) { impl_->stepper().keep(sequence, count); }
PrefixId Model::retain(SequenceId sequence, int64_t length) {
  return impl_->stepper().retain(sequence, length);
}
SequenceId Model::attach(PrefixId prefix, int64_t length) {
  return impl_->stepper().attach(prefix, length);
}
KvPrefix Model::prefix(PrefixId prefix) const { return impl_->stepper().prefix(prefix); }
int64_t Model::resumed_length(PrefixId prefix, int64_t length) const {
  return impl_->stepper().resumed_length(prefix, length);
}
void Model::release_prefix(PrefixId prefix) { impl_->stepper().release_prefix(prefix); }
void Model::preempt(SequenceId sequence) { impl_->stepper().preempt(sequence); }
std::pair<int64_t, int64_t> Model::kv_blocks() const { return impl_->stepper().kv_blocks(); }
StepFit Model::fits(std::span<const StepInput> inputs) const {
  return impl_->stepper().fits(inputs);
}
StepperTraits Model::traits() const { return impl_->stepper().traits(); }
ThreadLender* Model::thread_lender() { return impl_->stepper().thread_lender(); }
std::span<const StepFailure> Model::failures() const { return impl_->stepper().failures(); }
std::span<const SpecialistShare> Model::shares(size_t output) const {
  return impl_->stepper().shares(output);
}
std::span<const StepOutput> Model::step(std::span<const StepInput> inputs) {
  return impl_->stepper().step(inputs);
}
std::span<const float> Model::features(SequenceId sequence) const {
  return impl_->stepper().features(sequence);
}
void Model::set_audit_sink(AuditSink* sink) { impl_->stepper().set_audit_sink(sink); }
AuditSink* Model::audit_sink() const { return impl_->stepper().audit_sink(); }
const AuditLayout& Model::audit_layout() const { return impl_->stepper().audit_layout(); }
void Model::set_audit_mode(AuditMode mode) { impl_->stepper().set_audit_mode(mode); }

Tokenizer open_tokenizer(const Checkpoint& checkpoint) {
  const std::string json = checkpoint.tokenizer_json();
  if (json.empty()) {
    throw Error(ErrorKind::kBadFile,
                checkpoint.path() +
                    (checkpoint.is_gguf()
                         ? ": holds no tokenizer (tokenizer.ggml.tokens); expected one"
                         : ": there is no tokenizer.json; expected one in the model's folder, as "
                           "Hugging Face publishes it (or Mistral's tekken.json, Kimi's "
                           "tiktoken.model)"));
  }
  return Tokenizer::from_json(json, checkpoint.tokenizer_name());
}

Tokenizer open_tokenizer(const Checkpoint& checkpoint, const ModelFacts& facts) {
  Tokenizer tokenizer = open_tokenizer(checkpoint);
  if (tokenizer.vocab_size() <= facts.vocab_size) return tokenizer;
  throw Error(ErrorKind::kBadFile,
              checkpoint.tokenizer_name() + ": the vocabulary has " +
                  std::to_string(tokenizer.vocab_size()) + " ids and the model's embedding " +
                  std::to_string(facts.vocab_size) + " rows (" +
                  (checkpoint.is_gguf() ? "token_embd.weight" : "config.json") +
                  ", vocab_size); expected a tokenizer of this model");
}

TokenTable make_token_table(const Tokenizer& tokenizer, int32_t vocab_size,
                            std::vector<int32_t> end_ids) {
  std::vector<std::string> bytes(static_cast<size_t>(std::max(vocab_size, 0)));
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return TokenTable::from_bytes(std::move(bytes), std::move(end_ids));
}

}  // namespace vitrine
