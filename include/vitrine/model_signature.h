// SPDX-License-Identifier: Apache-2.0
// The room `gates`: who vouches for a model's files, as others' tools make and check it.
//
// A signature has the form of OpenSSF Model Signing 1.0 (https://github.com/sigstore/
// model-transparency, PyPI `model-signing`): a Sigstore bundle whose DSSE envelope holds an in-toto
// statement with the SHA-256 of each file. Keys are of an elliptic curve (NIST P-256, P-384 or
// P-521) in PEM, as `openssl` makes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// Which files of a model count, and what a host wants to know while they are read.
struct ModelSignatureOptions {
  /// Files and folders that are left out, relative to the model. Those that a signature names are
  /// left out when it is checked, too.
  std::vector<std::string> ignored = {};
  /// Leaves out what Git keeps in a model's folder: .git, .github, .gitattributes, .gitignore.
  bool ignores_git = true;
  /// Reads the files that symbolic links lead to. Otherwise a link is an error.
  bool allows_links = false;
  /// Lets verify_model() accept files that the signature does not name.
  bool ignores_unsigned = false;
  /// Opens sign_model()'s private key where it is encrypted.
  std::string passphrase = {};
  /// Called before a file is read, with its path and its size in bytes.
  std::function<void(const std::string& path, uint64_t bytes)> on_file = {};
  /// Raised by the host, from any thread, to end the reading (kCancelled); null: never.
  const std::atomic<bool>* cancelled = nullptr;
};

/// A file of a model.
struct SignedFile {
  std::string name = {};    ///< relative to the model, "/" between; "." is the model's only file
  std::string sha256 = {};  ///< of its content, 64 lower-case hexadecimal digits
};

/// What a signature says of a model.
struct SignedModel {
  std::string name = {};   ///< of the folder or file that was signed; it may change
  std::string root = {};   ///< SHA-256 over the files' digests, in hexadecimal
  std::string key = {};    ///< SHA-256 of the public key in PEM, in hexadecimal
  std::string curve = {};  ///< OpenSSL's name of the key's: "prime256v1", "secp384r1" …
  std::vector<SignedFile> files = {};            ///< in the signature's order
  std::vector<std::string> ignored = {};         ///< files and folders that were left out
  std::vector<std::string> unsigned_files = {};  ///< that are there and were not signed
};

/// Signs a model's folder, or a file that is the whole model, and writes the signature to the file
/// `out`, at once or not at all. Files are signed in the order of their names' parts; `out` itself
/// is left out. `key_file`: a private key in PEM; others' right to read it is a warning. ECDSA
/// draws a random number, so that no two signatures are equal. Throws kInvalidArgument (no such
/// model, no files, a link, a part of a split GGUF file, `out` is the key or a file of the model),
/// kBadFile (naming the key's file), kIo and kCancelled. Thread-safe.
VITRINE_API SignedModel sign_model(const std::string& model, const std::string& key_file,
                                   const std::string& out,
                                   const ModelSignatureOptions& options = {});

/// Checks a signature with a public key in PEM, then that the model has the files that it names
/// with the digests that it names, and (unless ignores_unsigned is set) no other. Throws kBadFile
/// where anything does not hold (naming the file, the field, what was found and expected), and what
/// sign_model() throws for a model. Thread-safe.
VITRINE_API SignedModel verify_model(const std::string& model, const std::string& signature_file,
                                     const std::string& public_key_file,
                                     const ModelSignatureOptions& options = {});

}  // namespace vitrine
