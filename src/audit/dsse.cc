// SPDX-License-Identifier: Apache-2.0
#include "dsse.h"

#include <sodium.h>

#include <algorithm>
#include <optional>

#include "core/json_text.h"

namespace vitrine::audit {
namespace {

constexpr size_t kMaxSignatures = 64;
constexpr size_t kMaxValues = 1024;

std::string to_base64(ByteSpan bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), kVariant);
  text.pop_back();
  return text;
}

/// Decodes base64 in either alphabet, as the specification asks.
std::optional<Bytes> from_base64(std::string_view text) {
  for (const int variant : {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_URLSAFE}) {
    Bytes bytes(text.size() / 4 * 3 + 3);
    size_t size = 0;
    const char* end = nullptr;
    if (sodium_base642bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &size,
                          &end, variant) == 0 &&
        end == text.data() + text.size()) {
      bytes.resize(size);
      return bytes;
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kBadFile, file + ": " + what + ", as a DSSE envelope has");
}

const std::string& string_at(const nlohmann::json& object, const char* name,
                             const std::string& file, const std::string& place) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    refuse(file, "field " + place + name +
                     (found == object.end() ? " is not there" : " is " + found_text(*found)) +
                     "; expected a string");
  }
  return found->get_ref<const std::string&>();
}

Bytes base64_at(const nlohmann::json& object, const char* name, const std::string& file,
                const std::string& place) {
  std::optional<Bytes> bytes = from_base64(string_at(object, name, file, place));
  if (!bytes) refuse(file, "field " + place + name + " is no base64; expected base64");
  return std::move(*bytes);
}

}  // namespace

std::string pre_authentication_encoding(std::string_view payload_type, std::string_view payload) {
  std::string text = "DSSEv1 ";
  text.append(std::to_string(payload_type.size())).append(" ").append(payload_type);
  text.append(" ").append(std::to_string(payload.size())).append(" ").append(payload);
  return text;
}

std::string envelope_text(std::string_view payload_type, std::string_view payload,
                          std::string_view key_id, ByteSpan signature) {
  nlohmann::ordered_json envelope;
  envelope["payloadType"] = payload_type;
  envelope["payload"] = to_base64(bytes_of(payload));
  envelope["signatures"] = {{{"keyid", key_id}, {"sig", to_base64(signature)}}};
  return envelope.dump();
}

std::string seal_envelope(std::string_view payload_type, std::string_view payload,
                          const SealKey& key) {
  const std::string message = pre_authentication_encoding(payload_type, payload);
  const auto signature = key.sign(bytes_of(message));
  return envelope_text(payload_type, payload, public_key_text(key.public_key()), signature) + "\n";
}

bool Envelope::is_signed_by(const PublicKey& key) const {
  const std::string message = pre_authentication_encoding(payload_type, payload);
  return std::ranges::any_of(signatures, [&](const Bytes& signature) {
    return signature.size() == crypto_sign_BYTES &&
           crypto_sign_verify_detached(signature.data(), bytes_of(message).data(), message.size(),
                                       key.data()) == 0;
  });
}

Envelope parse_envelope(std::string_view text, const std::string& file) {
  const nlohmann::json json = parse_json_object(text, file, kMaxValues);
  Envelope envelope;
  envelope.payload_type = string_at(json, "payloadType", file, "");
  const Bytes payload = base64_at(json, "payload", file, "");
  envelope.payload.assign(payload.begin(), payload.end());
  const auto signatures = json.find("signatures");
  if (signatures == json.end() || !signatures->is_array() || signatures->empty() ||
      signatures->size() > kMaxSignatures) {
    refuse(file, "field signatures is no list of 1 to " + std::to_string(kMaxSignatures) +
                     " signatures; expected one");
  }
  for (const nlohmann::json& signature : *signatures) {
    if (!signature.is_object()) {
      refuse(file, "field signatures holds " + found_text(signature) + "; expected objects");
    }
    envelope.signatures.push_back(base64_at(signature, "sig", file, "signatures[]."));
  }
  return envelope;
}

}  // namespace vitrine::audit
