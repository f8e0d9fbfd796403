// See staging.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layout/pack.h"

namespace fulcrum::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;
constexpr int64_t kGroupRows = 128;
// Pages of the file are released after this many pieces, so that a checkpoint larger than host
// memory does not evict everything else.
constexpr int64_t kReleasePieces = 16;

}  // namespace

int64_t PieceRows(int64_t row_bytes) {
  return std::max(kGroupRows, kPieceBytes / row_bytes / kGroupRows * kGroupRows);
}

absl::StatusOr<std::unique_ptr<Staging>> Staging::Make(int device) {
  std::unique_ptr<Staging> staging(new Staging(device));
  absl::MutexLock lock(&staging->mutex_);
  absl::StatusOr<Stream> stream = MakeStream(device, Priority::kBackground);
  if (!stream.ok()) return stream.status();
  staging->stream_ = *std::move(stream);
  for (Event* event : {&staging->done_, &staging->copied_[0], &staging->copied_[1]}) {
    absl::StatusOr<Event> made = MakeEvent(device, EventKind::kQuiet);
    if (!made.ok()) return made.status();
    *event = *std::move(made);
  }
  absl::Status words = Grow(staging->found_nan_, device, sizeof(uint32_t));
  if (words.ok()) words = Grow(staging->host_nan_, device, sizeof(uint32_t));
  if (!words.ok()) return words;
  // Allocated here, before weights can take the memory.
  if (absl::Status s = staging->Reserve(kPieceBytes); !s.ok()) return s;
  return staging;
}

absl::Status Staging::Reserve(size_t bytes) {
  for (PinnedBuffer& buffer : read_) {
    if (absl::Status s = Grow(buffer, device_, bytes); !s.ok()) return s;
  }
  return Grow(rows_, device_, bytes);
}

absl::StatusOr<bool> Staging::Load(const WeightSource& source, const TileLayout& layout,
                                   std::byte* resident) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = SetDevice(device_); !s.ok()) return s;
  const int64_t row_bytes = source.spec().row_bytes();
  const int64_t rows = std::min(PieceRows(row_bytes), source.spec().n);
  if (absl::Status s = Reserve(static_cast<size_t>(rows * row_bytes)); !s.ok()) return s;
  const absl::Status enqueued = Enqueue(source, layout, resident);
  // After an error too: enqueued operations read these buffers and write the caller's memory.
  const absl::Status drained = WaitQuietly(stream_, done_);
  if (!enqueued.ok()) return enqueued;
  if (!drained.ok()) return drained;
  uint32_t found_nan = 0;
  std::memcpy(&found_nan, host_nan_.data(), sizeof(found_nan));
  return found_nan != 0;
}

absl::Status Staging::Enqueue(const WeightSource& source, const TileLayout& layout,
                              std::byte* resident) {
  const WeightSpec& spec = source.spec();
  // The checksum reads the bytes between the parts, so they must be initialised.
  if (absl::Status s = CudaStatus(
          cudaMemsetAsync(resident, 0, static_cast<size_t>(layout.bytes()), stream_.get()),
          "cudaMemsetAsync");
      !s.ok()) {
    return s;
  }
  if (absl::Status s =
          CudaStatus(cudaMemsetAsync(found_nan_.data(), 0, found_nan_.size(), stream_.get()),
                     "cudaMemsetAsync");
      !s.ok()) {
    return s;
  }
  if (const std::span<const float> scales = source.scales(); !scales.empty()) {
    if (absl::Status s =
            CudaStatus(cudaMemcpyAsync(resident + layout.scale_offset(), scales.data(),
                                       scales.size_bytes(), cudaMemcpyHostToDevice, stream_.get()),
                       "cudaMemcpyAsync of scales");
        !s.ok()) {
      return s;
    }
  }
  const int64_t rows = PieceRows(spec.row_bytes());
  int64_t piece = 0;
  for (int64_t row = 0; row < spec.n; row += rows, ++piece) {
    if (absl::Status s = EnqueuePiece(source, row, std::min(rows, spec.n - row),
                                      static_cast<int>(piece % 2), resident);
        !s.ok()) {
      return s;
    }
    if (piece % kReleasePieces == kReleasePieces - 1) source.ReleasePages();
  }
  source.ReleasePages();
  if (layout.row_bytes > 0) {
    if (absl::Status s =
            CudaStatus(UnpackRows(layout, resident, resident + layout.rows_offset(), stream_.get()),
                       "unpacking of rows");
        !s.ok()) {
      return s;
    }
  }
  return CudaStatus(cudaMemcpyAsync(host_nan_.data(), found_nan_.data(), found_nan_.size(),
                                    cudaMemcpyDeviceToHost, stream_.get()),
                    "cudaMemcpyAsync");
}

absl::Status Staging::EnqueuePiece(const WeightSource& source, int64_t row, int64_t count, int turn,
                                   std::byte* resident) {
  const WeightSpec& spec = source.spec();
  const auto bytes = static_cast<size_t>(count * spec.row_bytes());
  const PinnedBuffer& read = read_[static_cast<size_t>(turn)];
  const Event& copied = copied_[static_cast<size_t>(turn)];
  if (absl::Status s = WaitQuietly(copied); !s.ok()) return s;
  if (absl::Status s = source.ReadRows(row, count, std::span(read.data(), bytes)); !s.ok()) {
    return s;
  }
  if (absl::Status s = CudaStatus(
          cudaMemcpyAsync(rows_.data(), read.data(), bytes, cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpyAsync of rows");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CudaStatus(cudaEventRecord(copied.get(), stream_.get()), "cudaEventRecord");
      !s.ok()) {
    return s;
  }
  if (spec.format == WeightFormat::kQ2_0) {
    return CudaStatus(PackQ2Tiles(spec, rows_.data(), row, count, resident, stream_.get()),
                      "packing of rows");
  }
  auto* const found_nan = reinterpret_cast<uint32_t*>(found_nan_.data());
  return CudaStatus(PackTiles(spec, rows_.data(), row, count, resident, found_nan, stream_.get()),
                    "packing of rows");
}

}  // namespace fulcrum::cuda
