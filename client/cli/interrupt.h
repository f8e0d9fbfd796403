// Ctrl-C, a closed terminal or `kill` as a request to end soon, for commands that leave a node as
// they found it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace fulcrum::cli {

// While it lives, the first SIGINT, SIGTERM or SIGHUP only sets asked(); the second of its kind
// ends the process as usual. A SIGHUP that the process was started to ignore (nohup) stays ignored.
// One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool asked() const;

 private:
  struct sigaction int_ {};
  struct sigaction term_ {};
  struct sigaction hup_ {};
};

}  // namespace fulcrum::cli
