// See interrupt.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/interrupt.h"

namespace fulcrum::cli {
namespace {

volatile std::sig_atomic_t g_asked = 0;  // all that a handler may touch

void Note(int) { g_asked = 1; }

}  // namespace

Interrupt::Interrupt() {
  g_asked = 0;
  struct sigaction once {};
  once.sa_handler = &Note;
  once.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &once, &int_);
  ::sigaction(SIGTERM, &once, &term_);
  ::sigaction(SIGHUP, nullptr, &hup_);
  if (hup_.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &once, nullptr);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &int_, nullptr);
  ::sigaction(SIGTERM, &term_, nullptr);
  ::sigaction(SIGHUP, &hup_, nullptr);
}

bool Interrupt::asked() const { return g_asked != 0; }

}  // namespace fulcrum::cli
