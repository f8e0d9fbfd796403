// What changing levers and checking cost the calls that go on meanwhile: 32 callers of one row, in
// process, for the whole run; stretches with and without 100 changes a second (by RPC, as an
// operator would), and with and without the shadow of 1 %, in pairs of which every other is the
// other way round. Also whether a batch ran under old levers that was picked after the change had
// been acknowledged: that would be a fault, and fails the run.
// Usage: bench_levers [--backend=auto] [--shape=17408x5120] [--seconds=0.5] [--pairs=20]
// [--only=flips|shadow]
// Figures are medians over pairs, with intervals of at least 95 % where there are six pairs or
// more.
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "service/bench/closed_loop.h"
#include "service/bench/in_process.h"
#include "service/metrics.h"

namespace {

using namespace fulcrum;           // NOLINT: a program of one file
using namespace fulcrum::service;  // NOLINT

constexpr int kCallers = 32;
constexpr absl::Duration kBetweenFlips = absl::Milliseconds(10);
constexpr char kOnePass[] = "ffn_gate_up:one_pass";
constexpr char kM16[] = "ffn_gate_up:m16";
// The arm of the calls stays; that of a family nobody calls changes.
constexpr char kOnePassAndAnother[] = "ffn_gate_up:one_pass,attn_o:one_pass";

constexpr char kShadowThread[] = "fulcrum-shadow";

struct Options {
  BenchNode node;
  double seconds = 0.5;
  int pairs = 20;
  bool flips = true, shadow = true;
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = part.size() > 1 ? part[1] : "";
    bool ok = true;
    if (part[0] == "--backend") {
      options->node.backend = value;
    } else if (part[0] == "--shape") {
      ok = ParseShape(value, &options->node);
    } else if (part[0] == "--seconds") {
      ok = absl::SimpleAtod(value, &options->seconds) && options->seconds > 0;
    } else if (part[0] == "--only") {
      options->flips = value == "flips";
      options->shadow = value == "shadow";
      ok = options->flips || options->shadow;
    } else if (part[0] == "--pairs") {
      ok = absl::SimpleAtoi(value, &options->pairs) && options->pairs > 0;
    } else {
      ok = false;
    }
    if (!ok) return false;
  }
  return true;
}

// The median of `values` and the ranks around it that hold the true one 19 times of 20.
struct Estimate {
  double median = 0, low = 0, high = 0;
};
Estimate Of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  // Chance that at most r of n fair coins show heads, both sides.
  size_t rank = 0;
  double term = std::pow(0.5, static_cast<double>(n)), below = term;
  for (size_t r = 0; r < n / 2 && 2 * below <= 0.05; ++r) {
    rank = r;
    term *= static_cast<double>(n - r) / static_cast<double>(r + 1);
    below += term;
  }
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values[rank], values[n - 1 - rank]};
}

class Levers {
 public:
  explicit Levers(const Server& node)
      : stub_(v1::LeverService::NewStub(
            grpc::CreateChannel(node.address(), grpc::InsecureChannelCredentials()))) {}

  // The epoch from now on; 0 when it was refused.
  uint64_t Set(std::string_view lever, std::string_view value) {
    v1::SetLeversRequest request;
    v1::LeverAssignment& assignment = *request.add_assignments();
    assignment.set_name(std::string(lever));
    assignment.set_value(std::string(value));
    v1::SetLeversResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->SetLevers(&context, request, &response);
    if (status.ok()) return response.epoch();
    std::fprintf(stderr, "bench_levers: %s\n", status.error_message().c_str());
    return 0;
  }

 private:
  const std::unique_ptr<v1::LeverService::Stub> stub_;
};

struct Flip {
  absl::Time acknowledged;
  uint64_t epoch;
};

// Changes a lever between two values until it goes.
class Flipper {
 public:
  Flipper(Levers& levers, std::string_view one, std::string_view other)
      : thread_([this, &levers, one, other] {
          absl::Time next = absl::Now();
          for (int i = 0; !stop_; ++i) {
            const uint64_t epoch = levers.Set("m16_tc", i % 2 == 0 ? other : one);
            flips_.push_back({absl::Now(), epoch});
            next += kBetweenFlips;
            absl::SleepFor(next - absl::Now());
          }
        }) {}
  std::vector<Flip> Stop() {
    stop_ = true;
    thread_.join();
    return flips_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<Flip> flips_;
  std::thread thread_;
};

// How flips took effect. A batch may run for as long as it takes; none may be picked late.
struct Effect {
  int64_t flips = 0, late = 0;
  double longest_us = 0;  // from the acknowledgement to the end of a call under older levers
};
void Add(const std::vector<Flip>& flips, const CallsRecorded& recorded, Effect* effect) {
  effect->flips += static_cast<int64_t>(flips.size());
  for (const CallsRecorded::Call& call : recorded.calls) {
    const auto newer = std::find_if(flips.begin(), flips.end(),
                                    [&](const Flip& f) { return f.epoch > call.epoch; });
    if (newer == flips.end()) continue;
    const double after_us = absl::ToDoubleMicroseconds(call.end - newer->acknowledged);
    effect->longest_us = std::max(effect->longest_us, after_us);
    // Submit began at `begin`, so it was picked at this moment or a little later.
    effect->late += call.begin + absl::Seconds(call.queued_seconds) > newer->acknowledged;
  }
}

struct Stretch {
  double p50 = 0, p99 = 0, calls_per_second = 0;
};
bool Measured(const CallsRecorded& recorded, Stretch* out) {
  if (!recorded.status.ok() || recorded.calls.empty()) {
    std::fprintf(stderr, "bench_levers: %zu calls ended, %s\n", recorded.calls.size(),
                 recorded.status.ToString().c_str());
    return false;
  }
  const std::vector<float> us = recorded.LatenciesUs();
  *out = {us[us.size() / 2], us[us.size() * 99 / 100], recorded.CallsPerSecond()};
  return true;
}

// Pairs of stretches without and with.
struct Pairs {
  std::vector<Stretch> without, with;

  void Print(const char* what) const {
    std::vector<double> p50, p99, calls;
    for (size_t i = 0; i < with.size(); ++i) {
      p50.push_back(with[i].p50 / without[i].p50);
      p99.push_back(with[i].p99 / without[i].p99);
      calls.push_back(with[i].calls_per_second / without[i].calls_per_second);
    }
    const auto median = [](const std::vector<Stretch>& of, double Stretch::*figure) {
      std::vector<double> values;
      for (const Stretch& stretch : of) values.push_back(stretch.*figure);
      return Of(values).median;
    };
    std::printf("%s, %zu pairs\n", what, with.size());
    const auto line = [&](const char* name, double Stretch::*figure, const Estimate& ratio) {
      std::printf("  %-8s %10.1f without %10.1f with   %.4f (%.4f .. %.4f)\n", name,
                  median(without, figure), median(with, figure), ratio.median, ratio.low,
                  ratio.high);
    };
    line("p50 us", &Stretch::p50, Of(p50));
    line("p99 us", &Stretch::p99, Of(p99));
    line("calls/s", &Stretch::calls_per_second, Of(calls));
  }
};

// `without(i)` and `with(i)` record a stretch of pair i each.
template <class Without, class With>
bool Run(int count, Pairs* pairs, const Without& without, const With& with) {
  for (int i = 0; i < count; ++i) {
    Stretch a, b;
    const bool ok = i % 2 == 0 ? Measured(without(i), &a) && Measured(with(i), &b)
                               : Measured(with(i), &b) && Measured(without(i), &a);
    if (!ok) return false;
    pairs->without.push_back(a);
    pairs->with.push_back(b);
  }
  return true;
}

// steady: what the stretches without flips have; one of the two others.
bool MeasureFlips(const Options& options, InProcessLoad& load, Levers& levers, const char* what,
                  const char* steady, const char* one, const char* other) {
  Effect effect;
  Pairs pairs;
  const bool ok = Run(
      options.pairs, &pairs,
      [&](int) {
        levers.Set("m16_tc", steady);
        load.Record(options.seconds / 5);
        return load.Record(options.seconds);
      },
      [&](int) {
        Flipper flipper(levers, one, other);
        load.Record(options.seconds / 5);
        CallsRecorded recorded = load.Record(options.seconds);
        Add(flipper.Stop(), recorded, &effect);
        return recorded;
      });
  if (!ok) return false;
  pairs.Print(what);
  std::printf(
      "  %ld flips; %ld calls picked late; a call under older levers ended at most %.0f us "
      "after the flip was acknowledged\n",
      static_cast<long>(effect.flips), static_cast<long>(effect.late), effect.longest_us);
  return effect.late == 0;
}

// The lines of the exposition that count shadow checks; the same again when none is under way.
std::string ShadowCounts(Server& node) {
  std::string counts;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(node.metrics().Text(), '\n'))) {
    if (line.rfind("fulcrum_shadow_checks_total", 0) == 0) counts += line;
  }
  return counts;
}
void AwaitShadow(Server& node) {
  for (std::string before, now = ShadowCounts(node); before != now; now = ShadowCounts(node)) {
    before = now;
    absl::SleepFor(absl::Milliseconds(500));  // longer than a check
  }
}

// CPU seconds that a thread of this process has used, by its name.
double CpuSeconds(std::string_view thread) {
  double seconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    if (name == thread) seconds += nanoseconds * 1e-9;
  }
  return seconds;
}
double CpuSecondsOfProcess() {
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

bool MeasureShadow(const Options& options, InProcessLoad& load, Levers& levers, Server& node) {
  const auto at = [&](const char* rate) {
    levers.Set("shadow_rate", rate);
    // What the stretch before left to check is not this one's.
    if (rate == std::string_view("0")) AwaitShadow(node);
    load.Record(options.seconds / 5);
    return load.Record(options.seconds);
  };
  levers.Set("m16_tc", kOnePass);
  Pairs pairs;
  double process = 0;  // in the stretches with it
  const double before = CpuSeconds(kShadowThread);
  const auto with = [&](int) {
    const double begin = CpuSecondsOfProcess();
    CallsRecorded recorded = at("0.01");
    process += CpuSecondsOfProcess() - begin;
    return recorded;
  };
  if (!Run(
          options.pairs, &pairs, [&](int) { return at("0"); }, with))
    return false;
  levers.Set("shadow_rate", "0");
  AwaitShadow(node);
  pairs.Print("shadow of 1 %");
  const double shadow = CpuSeconds(kShadowThread) - before;
  std::printf("  its thread used %.4f of the %.1f CPU seconds of the stretches with it: %.3f %%\n",
              shadow, process, 100 * shadow / process);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: bench_levers [--backend=auto] [--shape=NxK] [--seconds=S] [--pairs=P] "
                 "[--only=flips|shadow]\n");
    return 2;
  }
  SettleProcess();
  options.node.m16_tc = kOnePass;
  const auto node = StartBenchNode(options.node);
  if (!node.ok()) {
    std::fprintf(stderr, "bench_levers: %s\n", node.status().ToString().c_str());
    return 1;
  }
  const auto shard = (*node)->shards().Find(kBenchShard);
  if (!shard.ok()) return 1;
  std::printf("%ld x %ld fp8 on %s, %d callers of one row, stretches of %.2f s\n",
              static_cast<long>(options.node.n), static_cast<long>(options.node.k),
              (*shard)->backend->device().id.c_str(), kCallers, options.seconds);
  Levers levers(**node);
  if (levers.Set("shadow_rate", "0") == 0) return 1;
  InProcessLoad load((*node)->scheduler(), *shard, kCallers);
  load.Record(1);  // warm
  bool ok = true;
  if (options.flips) {
    ok = MeasureFlips(options, load, levers, "flips that change no arm of the calls", kOnePass,
                      kOnePass, kOnePassAndAnother) &&
         MeasureFlips(options, load, levers, "flips one_pass/m16, without: one_pass", kOnePass,
                      kOnePass, kM16) &&
         MeasureFlips(options, load, levers, "flips one_pass/m16, without: m16", kM16, kOnePass,
                      kM16);
  }
  if (options.shadow) ok = ok && MeasureShadow(options, load, levers, **node);
  return ok ? 0 : 1;
}
