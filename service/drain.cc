// See drain.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/drain.h"

#include <string>
#include <string_view>

#include "absl/time/clock.h"

namespace fulcrum::service {
namespace {

void LogEnd(const Logger& log, LogLevel level, std::string_view event, const OpenFacts& facts) {
  log.Log(level, event,
          {{"method", facts.method},
           {"id", facts.id.empty() ? std::string("-") : facts.id},
           {"peer", facts.peer},
           {"age_seconds", absl::Now() - facts.began},
           {"state", facts.state}});
}

}  // namespace

void Drain::Begin(absl::Duration patience) const {
  const CallBook::Counts open = book.BeginStop([this](const OpenFacts& facts) {
    LogEnd(log, LogLevel::kInfo, "stream is told to end", facts);
  });
  log.Info("draining", {{"patience_seconds", patience},
                        {"calls_in_flight", open.projections},
                        {"other_rpcs", open.others},
                        {"streams", open.streams}});
  scheduler.Hurry();
}

void Drain::EndCalls(absl::Time hard_stop, absl::FunctionRef<void()> before_launches) const {
  book.AwaitCalls(hard_stop);
  book.CutOffCalls(
      [this](const OpenFacts& facts) { LogEnd(log, LogLevel::kWarn, "call cut off", facts); });
  before_launches();
  scheduler.Drain(absl::ZeroDuration());
}

void Drain::EndStreams() const {
  book.CutOffStreams(
      [this](const OpenFacts& facts) { LogEnd(log, LogLevel::kInfo, "stream ended", facts); });
}

}  // namespace fulcrum::service
