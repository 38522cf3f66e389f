// SPDX-License-Identifier: Apache-2.0
// Manifests of quantized folders: what they say, who signs them, and what does not hold.
#include "vitrine/compression_manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/folders.h"
#include "tests/support/test_data.h"
#include "vitrine/compress.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr int64_t kDay = 86400;
constexpr int64_t kSecondOfJanuary2030 = 1893542400;  // 00:00 UTC

std::string small_model() { return testing_support::test_data("oracles/qwen3_moe"); }

QuantizeOptions options_with(const char* facts) {
  QuantizeOptions options;
  options.scheme = "int4";
  options.instruction_set = "any";
  options.facts = [facts](const std::string&) { return facts; };
  return options;
}

/// A folder that was calibrated with three tokens, so that most experts saw none, and sealed.
class SealedFolder {
 public:
  /// Copies one that was made before.
  SealedFolder() : key(plain().key) { std::filesystem::copy(plain().folder, folder); }
  explicit SealedFolder(const char* facts) {
    QuantizeOptions options = options_with(facts);
    options.method = "gptq";
    options.calibration = {{1, 2, 3}};
    options.finish = [this](const std::string& made) {
      write_file_atomically(made + "/" + std::string(kCompressionSealFile),
                            seal_compression(made, key));
    };
    quantize_checkpoint(small_model(), folder, options);
  }

  std::string file(std::string_view name) const { return folder + "/" + std::string(name); }
  json manifest() const { return json::parse(read_bytes(file(kCompressionManifestFile))); }
  json account() const { return json::parse(compression_account(folder, small_model())); }
  VerifiedCompression verify(int64_t now = kSecondOfJanuary2030 - kDay) const {
    return verify_compression(folder, key.public_key(), now);
  }
  void expect_refused(std::initializer_list<std::string_view> words) const {
    const Error error = error_of([&] { verify(); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  }

  TemporaryFolder temporary;
  std::string folder = temporary / "out";
  SealKey key = SealKey::generate();

 private:
  static const SealedFolder& plain() {
    static const SealedFolder sealed(R"({"expires": "2030-01-01"})");
    return sealed;
  }
};

TEST(CompressionManifest, TellsWhatEachMatrixBecame) {
  const SealedFolder sealed;
  const json manifest = sealed.manifest();
  const json account = sealed.account();
  EXPECT_EQ(account["method"], "gptq");
  EXPECT_EQ(account["instruction_set"], "any");
  EXPECT_GE(account["threads"].get<int>(), 1);
  EXPECT_EQ(account["expires"], "2030-01-01");
  for (const json& file : account["files"]) EXPECT_EQ(file["state"], "same") << file;
  EXPECT_EQ(account["files"].size(),
            manifest["result"]["files"].size() + manifest["source"]["files"].size());
  int64_t matrices = 0, calibrated = 0, reached = 0;
  for (const json& form : account["matrices"]) {
    matrices += form["matrices"].get<int64_t>();
    calibrated += form["calibrated"].get<int64_t>();
  }
  for (const auto& [name, matrix] : manifest["quantized"].items()) {
    reached += matrix["calibration"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(matrices, static_cast<int64_t>(manifest["quantized"].size()));
  EXPECT_EQ(calibrated, reached);
  // An expert's fate and tokens, counted again from its matrices.
  int64_t experts = 0, rounded = 0;
  for (const auto& [block, tokens] : account["experts"]["tokens"].items()) {
    for (size_t e = 0; e < tokens.size(); ++e) {
      ++experts;
      const json& gate =
          manifest["quantized"][block + ".experts." + std::to_string(e) + ".gate_proj"];
      const bool has_rows = !gate["calibration"].is_null();
      rounded += has_rows ? 0 : 1;
      EXPECT_EQ(tokens[e], has_rows ? gate["calibration"]["rows"].get<int64_t>() : 0);
    }
  }
  EXPECT_GT(experts, 0);
  EXPECT_GT(rounded, 0);
  EXPECT_EQ(account["experts"]["rounded"], rounded);
  EXPECT_EQ(account["experts"]["shrunk"], experts - rounded);
  EXPECT_EQ(account["experts"]["calibrated"], 0);
  EXPECT_EQ(account["experts"]["fewest_tokens"], 0);
  const auto missing = account["missing"].get<std::vector<std::string>>();
  EXPECT_TRUE(std::ranges::count(missing, "gate"));
  EXPECT_FALSE(std::ranges::count(missing, "expiry"));
  EXPECT_FALSE(std::ranges::count(missing, "signature"));
}

TEST(CompressionManifest, TellsWhichFilesAreNotWhatItSays) {
  const SealedFolder sealed;
  const std::string weights = sealed.file("model.safetensors");
  std::string bytes = read_bytes(weights);
  bytes[bytes.size() / 2] ^= 1;
  write_bytes(weights, bytes);
  std::filesystem::remove(sealed.file("generation_config.json"));
  write_bytes(sealed.file("adapter.safetensors"), "x");
  std::map<std::string, std::string> states;
  const json account = json::parse(compression_account(sealed.folder));
  for (const json& file : account["files"]) {
    if (file["of"] == "source") {
      EXPECT_EQ(file["state"], "not checked");
    } else {
      states[file["name"]] = file["state"];
    }
  }
  EXPECT_EQ(states.at("model.safetensors"), "changed");
  EXPECT_EQ(states.at("config.json"), "same");
  if (states.contains("generation_config.json")) {
    EXPECT_EQ(states["generation_config.json"], "missing");
  }
  EXPECT_EQ(account["unnamed"], json({"adapter.safetensors"}));
}

TEST(CompressionManifest, VerifiesWhatWasSealed) {
  const SealedFolder sealed;
  const VerifiedCompression verified = sealed.verify();
  EXPECT_EQ(verified.signer, sealed.key.public_key());
  EXPECT_TRUE(verified.is_given_key);
  EXPECT_FALSE(verified.is_expired);
  EXPECT_EQ(verified.expires, "2030-01-01");
  EXPECT_EQ(verified.files.back(), kCompressionManifestFile);
  EXPECT_EQ(verified.manifest, read_bytes(sealed.file(kCompressionManifestFile)));
  EXPECT_FALSE(verify_compression(sealed.folder, {}, 0).is_given_key);
  EXPECT_EQ(seal_compression(sealed.folder, sealed.key),
            read_bytes(sealed.file(kCompressionSealFile)));
  // Notes that no program loads may stand there; what it holds on its last day, it holds all day.
  write_bytes(sealed.file("README.md"), "a note");
  EXPECT_FALSE(sealed.verify(kSecondOfJanuary2030 - 1).is_expired);
  EXPECT_TRUE(sealed.verify(kSecondOfJanuary2030).is_expired);
}

TEST(CompressionManifest, RefusesWhatWasChanged) {
  {
    const SealedFolder sealed;
    const Error error =
        error_of([&] { verify_compression(sealed.folder, SealKey::generate().public_key(), 0); });
    EXPECT_TRUE(is_one_line_with(error, {"signatures", "expected one"})) << error.what();
  }
  {
    const SealedFolder sealed;
    std::string bytes = read_bytes(sealed.file("model.safetensors"));
    bytes.back() ^= 1;
    write_bytes(sealed.file("model.safetensors"), bytes);
    sealed.expect_refused({"model.safetensors", "was changed", "SHA-256"});
    const Error error = error_of([&] { seal_compression(sealed.folder, sealed.key); });
    EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "was changed"})) << error.what();
  }
  {
    const SealedFolder sealed;
    std::filesystem::remove(sealed.file("config.json"));
    sealed.expect_refused({"config.json", "is not there"});
  }
  for (const char* added : {"model-00001-of-00002.safetensors", "pytorch_model.BIN", "x.gguf",
                            "chat_template.jinja", "adapter_config.json", "modeling.py"}) {
    const SealedFolder sealed;
    write_bytes(sealed.file(added), "{}");
    sealed.expect_refused({added, "does not name"});
  }
  {  // A manifest that says something else, and names its own hash nowhere.
    const SealedFolder sealed;
    json manifest = sealed.manifest();
    manifest["expires"] = "2031-01-01";
    write_bytes(sealed.file(kCompressionManifestFile), manifest.dump());
    sealed.expect_refused({"subject", "expected"});
  }
  {
    const SealedFolder sealed;
    std::filesystem::remove(sealed.file(kCompressionSealFile));
    sealed.expect_refused({"is not signed", "--seal"});
  }
  {  // The signature is over the payload as it stands.
    const SealedFolder sealed;
    json envelope = json::parse(read_bytes(sealed.file(kCompressionSealFile)));
    std::string payload = envelope["payload"];
    payload[payload.size() / 2] = payload[payload.size() / 2] == 'A' ? 'B' : 'A';
    envelope["payload"] = payload;
    write_bytes(sealed.file(kCompressionSealFile), envelope.dump());
    EXPECT_EQ(error_of([&] { sealed.verify(); }).kind(), ErrorKind::kBadFile);
  }
  {  // Another folder's seal by the same key.
    const SealedFolder other(R"({"expires": "2029-01-01"})");
    const SealedFolder third;
    write_bytes(third.file(kCompressionSealFile), seal_compression(other.folder, third.key));
    third.expect_refused({"subject", "expected"});
  }
}

TEST(CompressionManifest, RefusesHostileManifests) {
  const SealedFolder sealed;
  const json good = sealed.manifest();
  const auto refused = [&](const json& manifest, std::initializer_list<std::string_view> words) {
    write_bytes(sealed.file(kCompressionManifestFile), manifest.dump());
    for (const bool is_sealing : {false, true}) {
      const Error error = error_of([&] {
        is_sealing ? seal_compression(sealed.folder, sealed.key)
                   : compression_account(sealed.folder);
      });
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
      EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    }
  };
  const auto changed = [&](const char* place, const json& value) {
    json manifest = good;
    manifest[json::json_pointer(place)] = value;
    return manifest;
  };
  refused(changed("/schema", "other"), {"schema", "vitrine-manifest"});
  refused(changed("/schema_version", 2), {"schema_version", "expected 1"});
  refused(changed("/result/files", 3), {"result/files", "a list"});
  refused(changed("/result/files", json::array()), {"result/files"});
  refused(changed("/result/files/0", 7), {"result/files/0/name"});
  refused(changed("/result/files/0/name", "../escape"), {"result/files/0/name", "no path"});
  refused(changed("/result/files/0/name", ".."), {"result/files/0/name", "no path"});
  refused(changed("/source/files/0/name", "/etc/passwd"), {"source/files/0/name", "no path"});
  refused(changed("/result/files/0/bytes", -3), {"result/files/0/bytes"});
  refused(changed("/result/files/0/sha256", "abc"), {"result/files/0/sha256", "64"});
  refused(changed("/expires", "2030-02-30"), {"expires", "2030-02-30", "a day"});
  refused(changed("/expires", 5), {"expires"});
  write_bytes(sealed.file(kCompressionManifestFile), good.dump().substr(0, 1000));
  EXPECT_EQ(error_of([&] { compression_account(sealed.folder); }).kind(), ErrorKind::kBadFile);
  // What only an account reads.
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, json>>{{"/quantized", 1},
                                                 {"/quantized/lm_head", 1},
                                                 {"/quantized/lm_head/bits", "four"},
                                                 {"/unquantized", json::array()},
                                                 {"/scheme", nullptr},
                                                 {"/source/name", 1}}) {
    SCOPED_TRACE(place);
    write_bytes(sealed.file(kCompressionManifestFile), changed(place, value).dump());
    EXPECT_EQ(error_of([&] { compression_account(sealed.folder); }).kind(), ErrorKind::kBadFile);
  }
  for (const char* place : {"/experts", "/fallbacks", "/corpus", "/gate", "/adapters", "/tool"}) {
    for (const json& value : {json(3), json("x"), json::array({1, json::object()}), json()}) {
      write_bytes(sealed.file(kCompressionManifestFile), changed(place, value).dump());
      EXPECT_NO_THROW(compression_account(sealed.folder)) << place << value;
    }
  }
}

TEST(CompressionManifest, RefusesFactsThatItCannotHold) {
  const TemporaryFolder folder;
  for (const char* facts : {"[1]", "{", R"({"scheme": 1})", R"({"result": {}})"}) {
    const Error error =
        error_of([&] { quantize_checkpoint(small_model(), folder / "out", options_with(facts)); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << facts;
    EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  }
}

TEST(CompressionManifest, KnowsTheCalendar) {
  for (const char* day : {"2027-06-30", "2028-02-29", "0001-01-01", "9999-12-31"}) {
    EXPECT_TRUE(is_calendar_day(day)) << day;
  }
  for (const char* text : {"", "2027-6-30", "2027-02-29", "2027-13-01", "2027-00-10", "20270630",
                           "2027-06-31", "2027-06-30Z", "-027-06-30", "2027-+6-30", "x"}) {
    EXPECT_FALSE(is_calendar_day(text)) << text;
  }
}

}  // namespace
}  // namespace vitrine
