// SPDX-License-Identifier: Apache-2.0
// Embeddings as OpenAI has them below /v1, and as llama-server has them.
#include <sodium.h>

#include <bit>
#include <charconv>

#include "core/json_text.h"
#include "http/embedder.h"
#include "http/embedding_routes.json.h"
#include "http/native_request.h"
#include "http/route.h"
#include "serve/openai_fields.h"

namespace vitrine::http {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;

using Vectors = std::vector<std::vector<float>>;

/// What a body asks for.
struct EmbeddingRequest {
  std::string model;
  std::vector<std::vector<int32_t>> texts;
  EmbedOptions options;
  bool is_base64 = false, is_native = false;
  int64_t tokens = 0;
};

/// An object with "content" is the text of its parts.
json joined_parts(const json& input) {
  if (!input.is_object() || !input.contains("content")) return input;
  constexpr const char* kForm = "a list of parts of type 'text'";
  const json& parts = input["content"];
  if (!parts.is_array()) refuse_field("content", parts, kForm);
  std::string text;
  for (const json& part : parts) {
    const bool is_text = part.is_object() && part.value("type", json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) refuse_field("content", part, kForm);
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void read_texts(const Fields& fields, const Model& model, EmbeddingRequest& read) {
  const char* field = fields.has("input") ? "input" : "content";
  const json* input = fields.find(field);
  if (input == nullptr) refuse_field("input", nullptr, "a text, ids, or a list of either");
  if (!fields.has("input")) read.is_native = true;
  json texts = joined_parts(*input);
  if (texts.is_array()) {
    for (json& each : texts) each = joined_parts(each);
  }
  read.texts = read_native_prompts(model.tokenizer(), texts, field);
  const int64_t most = model.options().max_context;
  for (const std::vector<int32_t>& text : read.texts) {
    read.tokens += std::ssize(text);
    if (std::ssize(text) <= most) continue;
    Failure failure{.status = 400,
                    .type = "exceed_context_size_error",
                    .message = "'" + std::string(field) + "' has a text of " +
                               std::to_string(text.size()) +
                               " tokens, which is too large to process; expected at most " +
                               std::to_string(most),
                    .param = field};
    failure.extra = {{"n_prompt_tokens", text.size()}, {"n_ctx", most}};
    throw HttpError(failure);
  }
}

EmbeddingRequest read_request(const House& house, const Request& request, bool is_native) {
  const Embedder* embedder = house.embedder;
  if (embedder == nullptr || embedder->embeddings.model == nullptr) {
    throw Error(ErrorKind::kUnsupported,
                "This server does not support embeddings. Start it with `--embeddings`");
  }
  const EmbeddingModel& embeddings = embedder->embeddings;
  const json body = parse_json_object(request.body, "the body");
  const Fields fields(body);
  EmbeddingRequest read;
  read.is_native = is_native;
  std::string model;
  fields.read("model", model);
  const std::string first = house.model_names().front();
  if (&house.server->model(house.find_model(model)) != &house.server->model()) {
    refuse_field("model", model, first + ", which makes this server's embeddings");
  }
  read.model = house.shown_model(model);
  read_texts(fields, *embeddings.model, read);
  if (!read.is_native && embeddings.pooling == Pooling::kNone) {
    throw HttpError(400,
                    "Pooling type 'none' is not OAI compatible. Please use a different pooling "
                    "type, or /embeddings");
  }
  std::string format = "float";
  fields.read("encoding_format", format);
  if (format != "float" && format != "base64") {
    refuse_field("encoding_format", format, "float or base64");
  }
  read.is_base64 = format == "base64" && !read.is_native;
  const int width = embeddings.model->summary().hidden_size;
  if (fields.has("dimensions")) {
    int dimensions = 0;
    fields.read("dimensions", dimensions, 1, 1 << 20);
    if (dimensions != width) {
      refuse_field("dimensions", dimensions,
                   std::to_string(width) + ", which this model's vectors have");
    }
  }
  int norm = 2;
  fields.read("embd_normalize", norm, -1, 2);
  if (norm != 2 && norm != -1) {
    throw Error(ErrorKind::kUnsupported, "'embd_normalize' is " + std::to_string(norm) +
                                             "; expected 2 (Euclidean) or -1 (none)");
  }
  read.options.pooling = embeddings.pooling;
  read.options.normalize = norm == 2 && embeddings.pooling != Pooling::kNone;
  read.options.before_step = [embedder, is_gone = request.is_gone] {
    if (embedder->is_ending) throw Error(ErrorKind::kUnavailable, "the server is ending");
    if (*is_gone) throw Error(ErrorKind::kCancelled, "the client has gone");
  };
  return read;
}

/// Each number has as many digits as read back to the same float.
std::string numbers(std::span<const float> vector) {
  std::string all = "[";
  for (const float each : vector) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), each).ptr;
    if (all.size() > 1) all += ',';
    all.append(digits.data(), end);
  }
  return all + "]";
}

/// The floats' bytes, the lowest first.
std::string base64(std::span<const float> vector) {
  static_assert(std::endian::native == std::endian::little);
  const size_t bytes = vector.size_bytes();
  std::string text(sodium_base64_encoded_len(bytes, sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(vector.data()),
                    bytes, sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the zero behind it
  return "\"" + text + "\"";
}

Vectors make_vectors(const House& house, const EmbeddingRequest& read) {
  return embed(*house.embedder->embeddings.model, read.texts, read.options);
}

std::string native_body(const Vectors& vectors, size_t width) {
  std::string body = "[";
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (i > 0) body += ',';
    body += R"({"index":)" + std::to_string(i) + R"(,"embedding":[)";
    const std::span<const float> all(vectors[i]);
    for (size_t at = 0; at < all.size(); at += width) {
      if (at > 0) body += ',';
      body += numbers(all.subspan(at, width));
    }
    body += "]}";
  }
  return body + "]";
}

std::string openai_body(const EmbeddingRequest& read, const Vectors& vectors) {
  std::string body = R"({"object":"list","data":[)";
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (i > 0) body += ',';
    body += R"({"object":"embedding","index":)" + std::to_string(i) + R"(,"embedding":)";
    body += read.is_base64 ? base64(vectors[i]) : numbers(vectors[i]);
    body += read.is_base64 ? R"(,"encoding_format":"base64"})" : "}";
  }
  const Json usage = {{"prompt_tokens", read.tokens}, {"total_tokens", read.tokens}};
  return body + R"(],"model":)" + dump(read.model) + R"(,"usage":)" + dump(usage) + "}";
}

Reply make_reply(const House& house, const Request& request, bool is_native) {
  const EmbeddingRequest read = read_request(house, request, is_native);
  const Vectors vectors = make_vectors(house, read);
  const auto width = static_cast<size_t>(house.embedder->embeddings.model->summary().hidden_size);
  Reply reply;
  reply.body = read.is_native ? native_body(vectors, width) : openai_body(read, vectors);
  return reply;
}

Reply openai_embeddings(const House& house, const Request& request) {
  return make_reply(house, request, /*is_native=*/false);
}
Reply native_embeddings(const House& house, const Request& request) {
  return make_reply(house, request, /*is_native=*/true);
}

VITRINE_REGISTER_ROUTES(
    kEmbeddingRoutesJson,
    {
        {.method = "POST", .path = "/v1/embeddings", .handle = openai_embeddings, .is_slow = true},
        {.method = "POST", .path = "/embeddings", .handle = native_embeddings, .is_slow = true},
        {.method = "POST", .path = "/embedding", .handle = native_embeddings, .is_slow = true},
    });

}  // namespace

}  // namespace vitrine::http
