// Slots, memory budget and launches of the CPU backend.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/cpu/arms.h"
#include "kernels/cpu/host_buffer.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ladder/ladder.h"

namespace fulcrum::cpu {
namespace {

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string ModelName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos && colon + 2 < line.size()) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

class CpuSlot : public LaunchSlot {
 public:
  absl::Status Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) override {
    if (absl::Status status = Grow(activations_, activation_bytes); !status.ok()) return status;
    if (outputs_.size() < output_bytes.size()) outputs_.resize(output_bytes.size());
    for (size_t i = 0; i < output_bytes.size(); ++i) {
      if (absl::Status status = Grow(outputs_[i], output_bytes[i]); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  uint16_t* activations() override { return activations_.as<uint16_t>(); }
  std::byte* output(size_t target) override { return outputs_[target].data(); }

 private:
  static absl::Status Grow(HostBuffer& buffer, size_t bytes) {
    if (buffer.size() >= bytes) return absl::OkStatus();
    absl::StatusOr<HostBuffer> larger = HostBuffer::Make(bytes);
    if (!larger.ok()) return larger.status();
    buffer = *std::move(larger);
    return absl::OkStatus();
  }

  HostBuffer activations_;
  std::vector<HostBuffer> outputs_;
};

// Bytes of a launch whose rows run as pieces are read once a piece.
int64_t PieceCount(const Arm& arm, int m) { return static_cast<int64_t>(Pieces(arm, m).size()); }

}  // namespace

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Make(int threads,
                                                             int64_t memory_budget_bytes) {
  if (threads < 0 || memory_budget_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cpu: ", threads, " threads and a budget of ",
                                                   memory_budget_bytes,
                                                   " bytes; expected 0 (automatic) or more"));
  }
  std::unique_ptr<CpuBackend> backend(
      new CpuBackend(threads == 0 ? UsableCores() : threads, memory_budget_bytes));
  absl::MutexLock lock(&backend->launch_mutex_);
  for (int thread = 0; thread < backend->pool_.threads(); ++thread) {
    absl::StatusOr<HostBuffer> scratch = HostBuffer::Make(sizeof(ThreadScratch));
    if (!scratch.ok()) return scratch.status();
    backend->context_.scratch.push_back(*std::move(scratch));
  }
  return backend;
}

CpuBackend::CpuBackend(int threads, int64_t memory_budget_bytes)
    : pool_(threads), resident_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {
  device_.id = "cpu:0";
  device_.description = ModelName();
  device_.compute_units = threads;
  device_.memory_bytes = memory_budget_bytes > 0 ? memory_budget_bytes : HostMemoryBudget();
  device_.l2_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  context_.pool = &pool_;
}

std::span<const Arm> CpuBackend::ladder() const { return Arms(); }

absl::StatusOr<std::shared_ptr<ResidentWeight>> CpuBackend::Upload(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  const int64_t bytes = CpuWeight::Bytes(spec);
  const int64_t before = resident_bytes_->fetch_add(bytes);
  // Gives the bytes back unless the weight was made: then its deleter does.
  const auto release = [counter = resident_bytes_, bytes] { counter->fetch_sub(bytes); };
  if (before + bytes > device_.memory_bytes) {
    release();
    return absl::ResourceExhaustedError(
        absl::StrCat(spec.name, ": needs ", bytes, " bytes on cpu:0, ",
                     device_.memory_bytes - before, " of the budget of ", device_.memory_bytes,
                     " are left; unload a shard or raise the budget"));
  }
  absl::StatusOr<std::shared_ptr<CpuWeight>> weight = CpuWeight::Load(source);
  absl::Status status = weight.status();
  if (status.ok()) {
    absl::MutexLock lock(&launch_mutex_);
    status = context_.ReserveColumns(spec);
  }
  if (!status.ok()) {
    release();
    return status;
  }
  CpuWeight* const raw = weight->get();
  return std::shared_ptr<ResidentWeight>(
      raw, [owner = *std::move(weight), release](ResidentWeight*) mutable {
        owner.reset();
        release();
      });
}

std::unique_ptr<LaunchSlot> CpuBackend::NewSlot() { return std::make_unique<CpuSlot>(); }

absl::StatusOr<LaunchTimes> CpuBackend::Run(LaunchSlot& slot, const Launch& launch) {
  absl::MutexLock lock(&launch_mutex_);
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    const LaunchTarget& target = launch.targets[i];
    const WeightSpec& spec = target.weight->spec();
    const auto row_bytes = static_cast<int64_t>(SizeOf(launch.output_type)) * spec.n;
    int64_t first = 0;
    for (const int rows : Pieces(*target.arm, launch.m)) {
      const ArmArgs args = {.weight = target.weight,
                            .activations = slot.activations() + first * spec.k,
                            .activation_pitch = spec.k,
                            .output = slot.output(i) + first * row_bytes,
                            .output_type = launch.output_type,
                            .output_pitch = spec.n,
                            .m = rows,
                            .context = &context_};
      if (absl::Status status = target.arm->run(args); !status.ok()) return status;
      first += rows;
    }
  }
  return LaunchTimes{.kernel = absl::ToDoubleSeconds(absl::Now() - start)};
}

absl::Status CpuBackend::RunArm(const Arm& arm, ArmArgs args) {
  absl::MutexLock lock(&launch_mutex_);
  args.context = &context_;
  return arm.run(args);
}

Backend::LaunchShape CpuBackend::Shape(const Arm& arm, const WeightSpec& spec, int m) const {
  const RowItems items(spec.n, pool_.threads());
  const int64_t pieces = PieceCount(arm, m);
  return {.blocks = items.count(),
          .waves = static_cast<double>(items.count()) / pool_.threads(),
          .bytes = pieces * CpuWeight::Bytes(spec)};
}

}  // namespace fulcrum::cpu
