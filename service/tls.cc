// Credentials over gRPC's file watcher, fed from anonymous memory by a thread that checks first.
// SPDX-License-Identifier: Apache-2.0
#include "service/tls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "scheduler/exceptions.h"
#include "service/tls_material.h"

namespace fulcrum::service {
namespace {

constexpr unsigned kWatchSeconds = 1;  // gRPC's look at the copy: its shortest interval

absl::Status Errno(const char* what) {
  return absl::InternalError(
      absl::StrFormat("TLS material in memory: %s: %s", what, std::strerror(errno)));
}

// A file without a name: its content is replaced as a whole, under one path that stays. Keys reach
// no disk.
class MemoryFile {
 public:
  MemoryFile() = default;
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  absl::Status Replace(const std::string& content) {
    const int fd = memfd_create("fulcrum-tls", MFD_CLOEXEC);
    if (fd < 0) return Errno("memfd_create");
    absl::Status status = Fill(fd, content);
    if (status.ok() && fd_ >= 0) {
      // One step for readers that open the path: before it the old content, after it the new.
      if (dup3(fd, fd_, O_CLOEXEC) < 0) status = Errno("dup3");
    } else if (status.ok()) {
      fd_ = fd;
      return status;
    }
    close(fd);
    return status;
  }
  std::string path() const { return absl::StrFormat("/proc/self/fd/%d", fd_); }

 private:
  absl::Status Fill(int fd, const std::string& content) {
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = write(fd, content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Errno("write");
      done += static_cast<size_t>(n);
    }
    // The watcher reads the file twice (key, then chain) and tells a change in between by its
    // modification time in whole seconds: a version number there never repeats.
    ++version_;
    const timespec times[2] = {{version_, 0}, {version_, 0}};
    if (futimens(fd, times) != 0) return Errno("futimens");
    return absl::OkStatus();
  }

  int fd_ = -1;
  time_t version_ = 0;
};

}  // namespace

class ServerTls::Impl {
 public:
  Impl(const TlsFiles& files, TlsReloadListener on_reload)
      : files_(files), on_reload_(std::move(on_reload)) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  absl::Status Start() {
    absl::StatusOr<TlsMaterial> material = ReadTlsMaterial(files_);
    if (!material.ok()) return material.status();
    {
      absl::MutexLock lock(&mu_);
      if (absl::Status s = Publish(*material); !s.ok()) return s;
      credentials_ = MakeCredentials();
    }
    thread_ = std::thread([this] {
      KeepRunning([this] { Loop(); },
                  [this](const absl::Status& what) {
                    if (on_reload_) on_reload_(what);
                  });
    });
    return absl::OkStatus();
  }

  bool Reload() {
    absl::StatusOr<TlsMaterial> found = ReadTlsMaterial(files_);
    absl::StatusOr<absl::Time> heard = absl::Time();
    {
      absl::MutexLock lock(&mu_);
      if (found.ok() && *found == live_) {
        refused_ = absl::OkStatus();
        return false;
      }
      if (found.ok()) {
        if (absl::Status s = Publish(*found); !s.ok()) found = s;
      }
      if (found.ok()) {
        refused_ = absl::OkStatus();
        heard = found->expiry;
      } else {
        if (found.status() == refused_) return false;  // said once
        refused_ = found.status();
        heard = found.status();
      }
    }
    if (on_reload_) on_reload_(heard);
    return heard.ok();
  }

  std::shared_ptr<grpc::ServerCredentials> credentials() const {
    absl::MutexLock lock(&mu_);
    return credentials_;
  }
  absl::Time expiry() const {
    absl::MutexLock lock(&mu_);
    return live_.expiry;
  }

 private:
  absl::Status Publish(const TlsMaterial& material) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // The CA first: should the second step fail, the pair in use is still a matching one.
    if (files_.mutual()) {
      if (absl::Status s = client_ca_.Replace(material.client_ca); !s.ok()) return s;
    }
    if (absl::Status s = pair_.Replace(material.key + "\n" + material.certificate); !s.ok()) {
      return s;
    }
    live_ = material;
    return absl::OkStatus();
  }

  std::shared_ptr<grpc::ServerCredentials> MakeCredentials() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // One file for key and chain, so that no reader can see half of a change.
    grpc::experimental::TlsServerCredentialsOptions options(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            pair_.path(), pair_.path(), files_.mutual() ? client_ca_.path() : std::string(),
            kWatchSeconds));
    options.watch_identity_key_cert_pairs();
    if (files_.mutual()) {
      options.watch_root_certs();
      options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    }
    return grpc::experimental::TlsServerCredentials(options);
  }

  void Loop() {
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        const absl::Time next = absl::Now() + files_.reload;
        while (!stopping_) {
          if (changed_.WaitWithDeadline(&mu_, next)) break;
        }
        if (stopping_) return;
      }
      Reload();
    }
  }

  const TlsFiles files_;
  const TlsReloadListener on_reload_;
  mutable absl::Mutex mu_;
  absl::CondVar changed_;  // stopping
  MemoryFile pair_ ABSL_GUARDED_BY(mu_);
  MemoryFile client_ca_ ABSL_GUARDED_BY(mu_);
  TlsMaterial live_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::ServerCredentials> credentials_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

ServerTls::ServerTls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServerTls::~ServerTls() = default;

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Make(const TlsFiles& files,
                                                           TlsReloadListener on_reload) {
  if (!files.enabled()) return std::unique_ptr<ServerTls>(new ServerTls(nullptr));
  auto impl = std::make_unique<Impl>(files, std::move(on_reload));
  if (absl::Status s = impl->Start(); !s.ok()) return s;
  return std::unique_ptr<ServerTls>(new ServerTls(std::move(impl)));
}

std::shared_ptr<grpc::ServerCredentials> ServerTls::credentials() const {
  return impl_ ? impl_->credentials() : grpc::InsecureServerCredentials();
}
absl::Time ServerTls::expiry() const { return impl_ ? impl_->expiry() : absl::InfiniteFuture(); }
bool ServerTls::Reload() { return impl_ && impl_->Reload(); }

}  // namespace fulcrum::service
