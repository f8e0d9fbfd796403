// Ctrl-C, a closed terminal or `kill` as a request to end soon, for commands that leave a node as
// they found it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

#include "absl/time/time.h"

namespace fulcrum::cli {

// While it lives, SIGINT, SIGTERM and SIGHUP only set asked(): one request often arrives as several
// signals (a closed terminal's from the kernel and from the shell, `timeout`'s to its child and to
// the group), and none of them may cut short what turns levers back. Signals within 200 ms of one
// that counted do not count; the third that counts ends the process as it would have without this,
// and says on standard error that levers may still be turned. A SIGHUP that the process was started
// to ignore (nohup) stays ignored. SIGPIPE is ignored: with the reader of `fulcrum ab | head` gone,
// a write fails and levers are turned back all the same. One at a time.
class Interrupt {
 public:
  // `apart`: between two signals that count.
  explicit Interrupt(absl::Duration apart = absl::Milliseconds(200));
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool asked() const;

 private:
  struct sigaction int_ {};
  struct sigaction term_ {};
  struct sigaction hup_ {};
  struct sigaction pipe_ {};
};

}  // namespace fulcrum::cli
