// A subcommand of `fulcrum`, and what it is given to run with. The table of all of them is
// commands.cc; command line and exit status are app.cc's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/options.h"

namespace fulcrum::client {
class Client;
struct CallOptions;
}  // namespace fulcrum::client

namespace fulcrum::cli {

// Exit statuses; scripts rely on them.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;    // a negative verdict, or an error of the node
inline constexpr int kBadInput = 2;  // wrong usage, or a local file that cannot be used
inline constexpr int kNotRun = 3;    // no verdict: what would be judged does not run here

// Options before or after the subcommand.
struct Globals {
  std::string target = "127.0.0.1:50051";
  bool json = false;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  double timeout_s = 0;  // 0: the command's own default
};

inline constexpr char kLookAtShards[] =
    "`fulcrum shards` shows names, sizes and states, `fulcrum info` the limits";
inline constexpr char kLookAtLevers[] =
    "`fulcrum levers list` shows names, values, what is allowed and what is latched";
inline constexpr char kLookAtFile[] =
    "`fulcrum inspect FILE` shows what a file holds, `fulcrum shards` what is loaded";

class Context {
 public:
  Context(const Globals& globals, std::ostream& out, std::ostream& err)
      : globals_(globals), out_(out), err_(err) {}

  const Globals& globals() const { return globals_; }
  bool json() const { return globals_.json; }
  std::ostream& out() const { return out_; }
  std::ostream& err() const { return err_; }

  absl::StatusOr<std::unique_ptr<client::Client>> Connect(int channels = 1) const;
  client::CallOptions Call() const;  // with --timeout

  // Prints the error and what to do about it; returns the exit status. `look_at`: what helps when
  // the node refuses what it was asked.
  int NodeError(const absl::Status& status, const char* look_at = kLookAtShards) const;
  int InputError(const absl::Status& status) const;
  int InputError(const std::string& message) const;

 private:
  const Globals& globals_;
  std::ostream& out_;
  std::ostream& err_;
};

class Command {
 public:
  virtual ~Command() = default;
  virtual void Declare(Options& options) = 0;
  virtual int Run(const Context& context) = 0;
};

// A row of the table. Two words ("levers set") make a subcommand of a subcommand.
struct CommandRow {
  const char* name;
  const char* summary;
  std::unique_ptr<Command> (*make)();
};
std::span<const CommandRow> Commands();

}  // namespace fulcrum::cli
