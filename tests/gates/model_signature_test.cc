// SPDX-License-Identifier: Apache-2.0
// Signatures of models: those that PyPI's model-signing made (tests/gates/model_signatures.py), our
// own, and hostile ones.
#include "vitrine/model_signature.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "signing_key.h"
#include "tests/support/test_data.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;
using testing_support::SigningKey;
using testing_support::test_data;
using Json = nlohmann::json;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const fs::path& path) { return read_text_file(path.string(), 1 << 20); }

/// A folder with a copy of the model that model-signing signed, and a key of the test's own.
class ModelSignature : public ::testing::Test {
 protected:
  ModelSignature() {
    std::string name = (fs::temp_directory_path() / "model-signature-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    fs::copy(fs::canonical(test_data("model_signing")), folder_, fs::copy_options::recursive);
    key_.write(path("key.pem"), path("public.pem"));
    ::chmod(path("key.pem").c_str(), 0600);
  }
  ~ModelSignature() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string model() const { return path("model"); }

  SignedModel sign(const ModelSignatureOptions& options = {}) const {
    return sign_model(model(), path("key.pem"), path("ours.sig"), options);
  }
  SignedModel verify(const ModelSignatureOptions& options = {}) const {
    return verify_model(model(), path("ours.sig"), path("public.pem"), options);
  }
  SignedModel verify_theirs(const ModelSignatureOptions& options = {}) const {
    return verify_model(model(), path("model.p256.sig"), path("p256.pem"), options);
  }

  /// Expects an error of this kind, in one line that has each of these parts.
  static void expect_refusal(const std::function<void()>& call, ErrorKind kind,
                             const std::vector<std::string>& parts) {
    try {
      call();
      ADD_FAILURE() << "no error; expected one with '" << parts[0] << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << "\nlacks " << part;
      }
    }
  }
  void expect_bad(const std::vector<std::string>& parts) const {
    expect_refusal([&] { verify(); }, ErrorKind::kBadFile, parts);
  }

  /// Signs the model, changes the bundle and expects that it is refused.
  void expect_bad_bundle(const std::function<void(Json&)>& change,
                         const std::vector<std::string>& parts) const {
    sign();
    Json bundle = Json::parse(read(path("ours.sig")));
    change(bundle);
    write(path("ours.sig"), bundle.dump());
    expect_bad(parts);
  }
  /// Does so with the statement, which is signed anew: a signer who means harm.
  void expect_bad_statement(const std::function<void(Json&)>& change,
                            const std::vector<std::string>& parts) const {
    expect_bad_bundle(
        [&](Json& bundle) {
          Json statement =
              Json::parse(testing_support::from_base64(bundle["dsseEnvelope"]["payload"]));
          change(statement);
          key_.sign_anew(bundle, statement.dump());
        },
        parts);
  }
  static Json& resources(Json& statement) { return statement["predicate"]["resources"]; }

  fs::path folder_;
  SigningKey key_;
};

TEST_F(ModelSignature, OfModelSigningHolds) {
  for (const std::string curve : {"p256", "p384", "p521"}) {
    const SignedModel model =
        verify_model(this->model(), path("model." + curve + ".sig"), path(curve + ".pem"));
    EXPECT_EQ(model.name, "model");
    EXPECT_EQ(model.files.size(), 8U);
    EXPECT_EQ(model.curve, curve == "p256"   ? "prime256v1"
                           : curve == "p384" ? "secp384r1"
                                             : "secp521r1");
    EXPECT_TRUE(model.unsigned_files.empty());
  }
  const SignedModel file = verify_model(path("tiny.gguf"), path("tiny.gguf.sig"), path("p256.pem"));
  ASSERT_EQ(file.files.size(), 1U);
  EXPECT_EQ(file.files[0].name, ".");
  EXPECT_EQ(file.files[0].sha256, sha256_of_file(path("tiny.gguf")));
}

TEST_F(ModelSignature, OfModelSigningNamesWhatIsIgnored) {
  const SignedModel model = verify_model(this->model(), path("ignoring.sig"), path("p256.pem"));
  EXPECT_EQ(model.files.size(), 6U);
  const std::vector<std::string> ignored = {".git",       ".gitattributes", ".github",
                                            ".gitignore", "README.md",      "notes"};
  EXPECT_EQ(model.ignored, ignored);
  write(path("model/notes/more.txt"), "ignored, too");
  write(path("model/README.md"), "changed");
  verify_model(this->model(), path("ignoring.sig"), path("p256.pem"));
  write(path("model/notes.txt"), "not ignored");
  expect_refusal([&] { verify_model(this->model(), path("ignoring.sig"), path("p256.pem")); },
                 ErrorKind::kBadFile, {"'notes.txt'", "was not signed"});
}

TEST_F(ModelSignature, OfOursHasTheSameFilesInTheSameOrder) {
  const SignedModel theirs = verify_theirs(), ours = sign(), verified = verify();
  EXPECT_EQ(ours.root, theirs.root);
  EXPECT_EQ(ours.root, verified.root);
  ASSERT_EQ(ours.files.size(), theirs.files.size());
  for (size_t i = 0; i < ours.files.size(); ++i) {
    EXPECT_EQ(ours.files[i].name, theirs.files[i].name);
    EXPECT_EQ(ours.files[i].sha256, theirs.files[i].sha256);
  }
  // By texts "model.safetensors" comes before "model/part.bin", and by paths behind it.
  EXPECT_EQ(ours.files[4].name, "model/part.bin");
  EXPECT_EQ(ours.files[5].name, "model.safetensors");
}

TEST_F(ModelSignature, HoldsForEachCurve) {
  for (const char* curve : {"P-256", "P-384", "P-521"}) {
    const SigningKey key(curve);
    key.write(path("key.pem"), path("public.pem"));
    const SignedModel model = sign();
    EXPECT_EQ(verify().key, model.key);
    sign_model(path("tiny.gguf"), path("key.pem"), path("tiny.sig"));
    EXPECT_EQ(verify_model(path("tiny.gguf"), path("tiny.sig"), path("public.pem")).name,
              "tiny.gguf");
  }
}

TEST_F(ModelSignature, WithinTheModelLeavesItselfOut) {
  const std::string out = path("model/model.sig");
  const SignedModel first = sign_model(model(), path("key.pem"), out);
  EXPECT_EQ(first.files.size(), 8U);
  const SignedModel second = sign_model(model(), path("key.pem"), out);  // in its place
  EXPECT_EQ(first.root, second.root);
  EXPECT_EQ(verify_model(model(), out, path("public.pem")).root, first.root);
  fs::rename(model(), path("moved"));
  EXPECT_EQ(verify_model(path("moved/"), path("moved/model.sig"), path("public.pem")).name,
            "model");
}

TEST_F(ModelSignature, NamesTheFileThatChanged) {
  const std::string before = sha256_of_file(path("model/config.json"));
  write(path("model/config.json"), "{}");
  expect_refusal([&] { verify_theirs(); }, ErrorKind::kBadFile,
                 {"model.p256.sig: file 'config.json'", sha256_of_file(path("model/config.json")),
                  "expected " + before});
}

TEST_F(ModelSignature, NamesTheFileThatIsMissingOrNew) {
  fs::remove(path("model/config.json"));
  expect_refusal([&] { verify_theirs(); }, ErrorKind::kBadFile,
                 {"file 'config.json' is not in", "expected all files that were signed"});
  fs::remove(path("model/empty"));
  expect_refusal([&] { verify_theirs(); }, ErrorKind::kBadFile, {"(and 1 more)"});
  expect_refusal([&] { verify_theirs({.ignores_unsigned = true}); }, ErrorKind::kBadFile,
                 {"file 'config.json' is not in"});
}

TEST_F(ModelSignature, LeavesOutWhatItIsToldTo) {
  write(path("model/extra/file.txt"), "x");
  expect_refusal([&] { verify_theirs(); }, ErrorKind::kBadFile,
                 {"'extra/file.txt' is in", "was not signed"});
  verify_theirs({.ignored = {"extra"}});
  verify_theirs({.ignored = {"./extra/"}});
  EXPECT_EQ(verify_theirs({.ignores_unsigned = true}).unsigned_files,
            std::vector<std::string>{"extra/file.txt"});
  for (const char* outside : {"", ".", "..", "/etc", "extra/../..", "a/.."}) {
    expect_refusal([&] { verify_theirs({.ignored = {outside}}); }, ErrorKind::kInvalidArgument,
                   {"ignored path", "is no part of"});
  }
}

TEST_F(ModelSignature, LeavesOutWhatGitKeeps) {
  write(path("model/.git/HEAD"), "x");
  write(path("model/.gitignore"), "x");
  EXPECT_EQ(sign().files.size(), 8U);
  EXPECT_EQ(sign({.ignores_git = false}).files.size(), 10U);
  EXPECT_EQ(verify({.ignores_git = false}).files.size(), 10U);
  expect_refusal([&] { verify(); }, ErrorKind::kBadFile, {"'.git/HEAD' is not in"});
}

TEST_F(ModelSignature, RefusesLinks) {
  fs::create_symlink(path("model/config.json"), path("model/link.json"));
  expect_refusal([&] { sign(); }, ErrorKind::kInvalidArgument, {"'link.json' is a symbolic link"});
  EXPECT_EQ(sign({.allows_links = true}).files.size(), 9U);
  EXPECT_EQ(verify({.allows_links = true}).files.size(), 9U);
  expect_refusal([&] { verify(); }, ErrorKind::kInvalidArgument,
                 {"'link.json' is a symbolic link"});
  fs::create_directory_symlink(path("model/notes"), path("model/more"));
  expect_refusal([&] { sign({.allows_links = true}); }, ErrorKind::kInvalidArgument,
                 {"'more' is a symbolic link to a folder"});
  fs::remove(path("model/more"));
  fs::create_symlink(path("gone"), path("model/more"));
  expect_refusal([&] { sign({.allows_links = true}); }, ErrorKind::kInvalidArgument,
                 {"'more' is a symbolic link to no file"});
  fs::create_directory_symlink(model(), path("way"));
  for (const char* way : {"way", "way/"}) {
    expect_refusal([&] { sign_model(path(way), path("key.pem"), path("ours.sig")); },
                   ErrorKind::kInvalidArgument, {"is a symbolic link"});
  }
}

TEST_F(ModelSignature, RefusesWhatIsNoModel) {
  const auto sign_at = [&](const std::string& model) {
    return [this, model] { sign_model(path(model), path("key.pem"), path("ours.sig")); };
  };
  expect_refusal(sign_at("gone"), ErrorKind::kInvalidArgument, {"gone: is not there"});
  fs::create_directory(path("bare"));
  expect_refusal(sign_at("bare"), ErrorKind::kInvalidArgument, {"has no files to sign"});
  ASSERT_EQ(::mkfifo(path("bare/pipe").c_str(), 0600), 0);
  expect_refusal(sign_at("bare"), ErrorKind::kInvalidArgument, {"is neither a file nor a folder"});
  write(path("part-00001-of-00002.gguf"), "x");
  expect_refusal(sign_at("part-00001-of-00002.gguf"), ErrorKind::kInvalidArgument,
                 {"is one part of a split GGUF file"});
  write(path("whole-00001-of-00001.gguf"), "x");
  sign_at("whole-00001-of-00001.gguf")();
  write(path("bad/\xFF"), "x");
  expect_refusal(sign_at("bad"), ErrorKind::kInvalidArgument, {"a name that is not UTF-8"});
}

TEST_F(ModelSignature, ReplacesNothingButASignature) {
  const auto sign_to = [&](const std::string& out) {
    return [this, out] { sign_model(model(), path("key.pem"), path(out)); };
  };
  expect_refusal(sign_to("model/config.json"), ErrorKind::kInvalidArgument,
                 {"config.json: is a file of the model"});
  expect_refusal(sign_to("key.pem"), ErrorKind::kInvalidArgument, {"would replace"});
  expect_refusal([&] { sign_model(path("tiny.gguf"), path("key.pem"), path("tiny.gguf")); },
                 ErrorKind::kInvalidArgument, {"would replace"});
  EXPECT_EQ(read(path("model/config.json")), "{\"model_type\": \"olmoe\"}\n");
}

TEST_F(ModelSignature, NeedsTheRightKey) {
  sign();
  const SigningKey other;
  other.write(path("other.pem"), path("other.public.pem"));
  const auto verify_with = [&](const std::string& key) {
    return [this, key] { verify_model(model(), path("ours.sig"), path(key)); };
  };
  expect_refusal(verify_with("other.public.pem"), ErrorKind::kBadFile,
                 {"'verificationMaterial/publicKey/hint' is", "of the public key given"});
  expect_refusal(verify_with("p384.pem"), ErrorKind::kBadFile, {"publicKey/hint"});
  expect_refusal(verify_with("key.pem"), ErrorKind::kBadFile, {"holds a private key"});
  expect_refusal(verify_with("tiny.gguf"), ErrorKind::kBadFile, {"holds no public key"});
  expect_refusal(verify_with("gone.pem"), ErrorKind::kInvalidArgument, {"is not there"});
  const auto sign_with = [&](const std::string& key, const std::string& passphrase = "") {
    return [=, this] {
      ModelSignatureOptions options;
      options.passphrase = passphrase;
      sign_model(model(), path(key), path("ours.sig"), options);
    };
  };
  expect_refusal(sign_with("public.pem"), ErrorKind::kBadFile, {"holds a public key"});
  expect_refusal(sign_with("tiny.gguf"), ErrorKind::kBadFile, {"holds no private key"});
  SigningKey::ed25519().write(path("ed.pem"), path("ed.public.pem"));
  expect_refusal(sign_with("ed.pem"), ErrorKind::kBadFile, {"a key of the type ED25519"});
  SigningKey("secp256k1").write(path("k1.pem"), path("k1.public.pem"));
  expect_refusal(sign_with("k1.pem"), ErrorKind::kBadFile, {"on the curve 'secp256k1'"});
  key_.write(path("closed.pem"), path("public.pem"), "open sesame");
  expect_refusal(sign_with("closed.pem"), ErrorKind::kInvalidArgument, {"its passphrase"});
  expect_refusal(sign_with("closed.pem", "else"), ErrorKind::kInvalidArgument, {"not another one"});
  sign_with("closed.pem", "open sesame")();
  verify();
}

// The hint is not signed: without it, or with a forged one, the signature decides.
TEST_F(ModelSignature, ChecksTheSignatureAndNotTheHint) {
  sign();
  Json bundle = Json::parse(read(path("ours.sig")));
  bundle["verificationMaterial"]["publicKey"].erase("hint");
  write(path("ours.sig"), bundle.dump());
  verify();
  const SigningKey other;
  other.write(path("key.pem"), path("public.pem"));
  expect_bad({"'dsseEnvelope/signatures/0/sig' is no signature"});
}

TEST_F(ModelSignature, RefusesOtherBundles) {
  expect_bad_bundle([](Json& bundle) { bundle["mediaType"] = "text/plain"; },
                    {"'mediaType' is 'text/plain'", "sigstore.bundle.v0.3+json'"});
  expect_bad_bundle([](Json& bundle) { bundle.erase("mediaType"); }, {"'mediaType' is not there"});
  expect_bad_bundle([](Json& bundle) { bundle["dsseEnvelope"] = 1; }, {"'dsseEnvelope' is 1"});
  expect_bad_bundle([](Json& bundle) { bundle["dsseEnvelope"]["payload"] = "?"; }, {"no base64"});
  expect_bad_bundle([](Json& bundle) { bundle["dsseEnvelope"]["payloadType"] = "x"; },
                    {"'dsseEnvelope/payloadType' is 'x'"});
  expect_bad_bundle([](Json& bundle) { bundle["dsseEnvelope"]["signatures"] = Json::array(); },
                    {"signatures"});
  expect_bad_bundle(
      [](Json& bundle) {
        Json& signatures = bundle["dsseEnvelope"]["signatures"];
        signatures.push_back(signatures[0]);
      },
      {"'dsseEnvelope/signatures' is a list of 2", "one signature"});
  expect_bad_bundle([](Json& bundle) { bundle["dsseEnvelope"]["signatures"][0]["sig"] = "AAAA"; },
                    {"'dsseEnvelope/signatures/0/sig' is no signature"});
  expect_bad_bundle(
      [](Json& bundle) {
        bundle["verificationMaterial"] = {{"certificate", {{"rawBytes", "AA=="}}}};
      },
      {"of the kind certificate", "publicKey"});
  expect_bad_bundle([](Json& bundle) { bundle.erase("verificationMaterial"); },
                    {"'verificationMaterial' is not there"});
}

TEST_F(ModelSignature, RefusesChangedAndCutText) {
  sign();
  const std::string text = read(path("ours.sig"));
  for (size_t size = 0; size + 2 < text.size(); size += 97) {
    write(path("ours.sig"), text.substr(0, size));
    expect_bad({"ours.sig"});
  }
  Json bundle = Json::parse(text);
  std::string payload = testing_support::from_base64(bundle["dsseEnvelope"]["payload"]);
  for (size_t at = 0; at < payload.size(); at += 53) {
    std::string changed = payload;
    changed[at] ^= 1;
    bundle["dsseEnvelope"]["payload"] = testing_support::base64(changed);
    write(path("ours.sig"), bundle.dump());
    expect_bad({"'dsseEnvelope/signatures/0/sig' is no signature"});
  }
}

TEST_F(ModelSignature, RefusesOtherStatements) {
  expect_bad_statement([](Json& json) { json["_type"] = "x"; },
                       {"'_type' is 'x'", "Statement/v1'"});
  expect_bad_statement(
      [](Json& json) { json["predicateType"] = "https://model_signing/Digests/v0.1"; },
      {"'predicateType' is 'https://model_signing/Digests/v0.1'", "signature/v1.0'"});
  expect_bad_statement([](Json& json) { json["subject"].push_back(json["subject"][0]); },
                       {"'subject' is a list of 2", "one subject"});
  expect_bad_statement([](Json& json) { json["subject"] = 3; }, {"'subject' is 3"});
  for (const auto& [name, value] : {std::pair{"method", "shards"}, {"hash_type", "blake3"}}) {
    expect_bad_statement([&](Json& json) { json["predicate"]["serialization"][name] = value; },
                         {std::string("'predicate/serialization/") + name + "' is '" + value});
  }
  expect_bad_statement(
      [](Json& json) { json["predicate"]["serialization"].erase("allow_symlinks"); },
      {"allow_symlinks' is not there"});
  expect_bad_statement(
      [](Json& json) { json["subject"][0]["digest"]["sha256"] = std::string(64, 'a'); },
      {"'subject/0/digest/sha256' is aaaa", "the digest over those of"});
  expect_bad_statement([](Json& json) { json["predicate"] = nullptr; }, {"predicate"});
}

TEST_F(ModelSignature, RefusesHostileNames) {
  for (const std::string name : {"", "/etc/passwd", "../model/config.json", "notes/../config.json",
                                 "./config.json", "notes/", "a//b", ".."}) {
    expect_bad_statement([&](Json& json) { resources(json)[0]["name"] = name; },
                         {"'predicate/resources/0/name' is", "a path within the model"});
  }
  expect_bad_statement([](Json& json) { resources(json)[0]["name"] = std::string("a\0b", 3); },
                       {"'predicate/resources/0/name' is", "a path within the model"});
  expect_bad_statement([](Json& json) { resources(json).push_back(resources(json)[0]); },
                       {"for the second time", "each file once"});
  expect_bad_statement([](Json& json) { resources(json)[0]["name"] = "."; },
                       {"'predicate/resources' is a list of 8 with '.'"});
  expect_bad_statement([](Json& json) { resources(json) = Json::array(); },
                       {"'predicate/resources' is empty"});
  expect_bad_statement([](Json& json) { resources(json)[2] = 5; },
                       {"'predicate/resources/2/name' is not there"});
  expect_bad_statement([](Json& json) { resources(json)[2]["digest"] = "abc"; },
                       {"'predicate/resources/2/digest' is 'abc'", "64 lower-case"});
  expect_bad_statement([](Json& json) { resources(json)[2]["algorithm"] = "md5"; },
                       {"'predicate/resources/2/algorithm' is 'md5'"});
  for (const char* path : {".", "..", "/", "../model", ""}) {
    expect_bad_statement(
        [&](Json& json) { json["predicate"]["serialization"]["ignore_paths"] = {path}; },
        {"'predicate/serialization/ignore_paths/0' is", "a path within the model"});
  }
}

TEST_F(ModelSignature, OfAFileIsNoneOfAFolder) {
  expect_refusal([&] { verify_model(model(), path("tiny.gguf.sig"), path("p256.pem")); },
                 ErrorKind::kBadFile, {"is of a model that is one file; expected a folder"});
  expect_refusal([&] { verify_model(path("tiny.gguf"), path("model.p256.sig"), path("p256.pem")); },
                 ErrorKind::kBadFile, {"is of a folder; expected a model that is one file"});
}

TEST_F(ModelSignature, EndsWhereItsHostAsks) {
  std::atomic<bool> cancelled = false;
  size_t files = 0;
  ModelSignatureOptions options;
  options.cancelled = &cancelled;
  options.on_file = [&](const std::string&, uint64_t) { cancelled = ++files == 3; };
  expect_refusal([&] { sign(options); }, ErrorKind::kCancelled, {"cancelled"});
  EXPECT_EQ(files, 3U);
  EXPECT_FALSE(fs::exists(path("ours.sig")));
}

}  // namespace
}  // namespace vitrine
