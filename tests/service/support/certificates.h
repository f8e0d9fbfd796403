// Certificate authorities, certificates and keys made with the openssl command line, for one test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {

class Certificates {
 public:
  Certificates() { NewAuthority("ca"); }

  void NewAuthority(const std::string& name) {
    Run(
        absl::StrFormat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 "
                        "-subj /CN=%s -keyout %s -out %s",
                        name, Path(name + ".key"), Path(name + ".pem")));
  }
  // name.pem and name.key, for localhost, with the name as its CN and as a DNS name.
  void Issue(const std::string& name, const std::string& authority = "ca", int days = 30) {
    const std::string extensions = dir_.Write(
        name + ".ext", absl::StrFormat("subjectAltName=DNS:%s.test,DNS:localhost", name));
    Run(
        absl::StrFormat("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=%s "
                        "-keyout %s -out %s",
                        name, Path(name + ".key"), Path(name + ".csr")));
    Run(
        absl::StrFormat("x509 -req -in %s -CA %s -CAkey %s -CAcreateserial -days %d -extfile %s "
                        "-out %s",
                        Path(name + ".csr"), Path(authority + ".pem"), Path(authority + ".key"),
                        days, extensions, Path(name + ".pem")));
  }
  // Puts one file in another's place, as a rotation does.
  void Copy(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(Path(from), Path(to) + ".new",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(Path(to) + ".new", Path(to));
  }
  std::string Path(const std::string& name) const { return dir_.At(name); }
  std::string Read(const std::string& name) const { return ReadFile(Path(name)); }
  const TempDir& dir() const { return dir_; }

 private:
  static void Run(const std::string& arguments) {
    const std::string command = "openssl " + arguments + " 2>/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  TempDir dir_;
};

}  // namespace fulcrum::test
