// Reading and checking PEM files with OpenSSL.
// SPDX-License-Identifier: Apache-2.0
#include "service/tls_material.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fulcrum::service {
namespace {

constexpr std::streamsize kMaxPemBytes = 1 << 20;

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  std::string text(static_cast<size_t>(kMaxPemBytes) + 1, '\0');
  file.read(text.data(), kMaxPemBytes + 1);
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot be read: %s", path, std::strerror(errno)));
  }
  if (file.gcount() > kMaxPemBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: larger than %d bytes, not a PEM file", path, kMaxPemBytes));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

BioPtr Open(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// All certificates of a PEM text; the first is returned.
absl::StatusOr<X509Ptr> ParseCertificates(const std::string& path, const std::string& pem) {
  const BioPtr bio = Open(pem);
  X509Ptr first;
  while (true) {
    ERR_clear_error();
    X509Ptr next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    if (first == nullptr) first = std::move(next);
  }
  const unsigned long error = ERR_peek_last_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: holds a certificate that cannot be parsed", path));
  }
  if (first == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: holds no PEM certificate", path));
  }
  return first;
}

absl::StatusOr<KeyPtr> ParseKey(const std::string& path, const std::string& pem) {
  const BioPtr bio = Open(pem);
  // Without a callback of ours OpenSSL would ask for a passphrase on the terminal.
  const auto refuse = [](char*, int, int, void*) { return -1; };
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, refuse, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: holds no private key in PEM, or one that is encrypted; keys are read without a "
        "passphrase",
        path));
  }
  return key;
}

absl::StatusOr<absl::Time> Expiry(const std::string& path, const X509& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: has no valid end date", path));
  }
  return absl::FromTimeT(timegm(&end));
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsFiles& files) {
  TlsMaterial material;
  absl::Status problems;
  const auto note = [&problems](const absl::Status& status) {
    problems = problems.ok() ? status
                             : absl::Status(problems.code(), absl::StrCat(problems.message(), "\n",
                                                                          status.message()));
  };
  const auto read = [&note](const std::string& path, std::string* pem) {
    absl::StatusOr<std::string> text = ReadPem(path);
    if (!text.ok()) {
      note(text.status());
      return false;
    }
    *pem = *std::move(text);
    return true;
  };
  X509Ptr leaf;
  if (read(files.certificate, &material.certificate)) {
    absl::StatusOr<X509Ptr> parsed = ParseCertificates(files.certificate, material.certificate);
    if (parsed.ok()) {
      leaf = *std::move(parsed);
    } else {
      note(parsed.status());
    }
  }
  KeyPtr key;
  if (read(files.key, &material.key)) {
    absl::StatusOr<KeyPtr> parsed = ParseKey(files.key, material.key);
    if (parsed.ok()) {
      key = *std::move(parsed);
    } else {
      note(parsed.status());
    }
  }
  if (leaf != nullptr && key != nullptr) {
    const bool match = X509_check_private_key(leaf.get(), key.get()) == 1;
    ERR_clear_error();
    if (!match) {
      note(absl::InvalidArgumentError(absl::StrFormat(
          "%s is not the key of the first certificate in %s", files.key, files.certificate)));
    }
  }
  if (leaf != nullptr) {
    const absl::StatusOr<absl::Time> expiry = Expiry(files.certificate, *leaf);
    if (expiry.ok()) {
      material.expiry = *expiry;
    } else {
      note(expiry.status());
    }
  }
  if (files.mutual() && read(files.client_ca, &material.client_ca)) {
    const absl::StatusOr<X509Ptr> parsed = ParseCertificates(files.client_ca, material.client_ca);
    if (!parsed.ok()) note(parsed.status());
  }
  if (!problems.ok()) return problems;
  return material;
}

}  // namespace fulcrum::service
