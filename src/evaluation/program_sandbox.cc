// SPDX-License-Identifier: Apache-2.0
// Behind a fork of a process with threads only calls that are safe in signal handlers may be made:
// this file calls the system and nothing else.
#include "evaluation/program_sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>

namespace vitrine::evaluation {

namespace {

constexpr uid_t kNobody = 65534;

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;  // no filter
#endif

[[noreturn]] void fail_in_child(const SandboxPlan& plan, SandboxFailure::Step step) {
  const SandboxFailure failure{step, errno};
  [[maybe_unused]] const ssize_t written = write(plan.status, &failure, sizeof(failure));
  _exit(127);
}

bool limit_resource(decltype(RLIMIT_CPU) resource, uint64_t most, uint64_t grace = 0) {
  const rlimit limit = {most, most + grace};
  return setrlimit(resource, &limit) == 0;
}

bool set_limits(const ProgramLimits& limits) {
  constexpr uint64_t kMebibyte = 1 << 20;
  return limit_resource(RLIMIT_CPU, static_cast<uint64_t>(limits.seconds), 1) &&
         limit_resource(RLIMIT_AS, static_cast<uint64_t>(limits.memory) * kMebibyte) &&
         limit_resource(RLIMIT_FSIZE, static_cast<uint64_t>(limits.file_size) * kMebibyte) &&
         limit_resource(RLIMIT_NOFILE, 64) && limit_resource(RLIMIT_NPROC, 64) &&
         limit_resource(RLIMIT_CORE, 0);
}

/// Root becomes nobody.
bool give_up_root() {
  if (geteuid() != 0) return true;
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
      setresuid(kNobody, kNobody, kNobody) != 0) {
    return false;
  }
  // Another user's process could not write its own maps otherwise.
  return prctl(PR_SET_DUMPABLE, 1) == 0;
}

bool write_file(const char* path, const char* text, size_t size) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_written = write(file, text, size) == static_cast<ssize_t>(size);
  close(file);
  return is_written;
}

/// Writes "ID ID 1" without allocating.
size_t write_map(uint32_t id, std::array<char, 32>& text) {
  std::array<char, 10> digits;
  size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + id % 10);
    id /= 10;
  } while (id > 0);
  size_t size = 0;
  for (int copy = 0; copy < 2; ++copy) {
    for (size_t i = count; i > 0; --i) text[size++] = digits[i - 1];
    text[size++] = ' ';
  }
  text[size++] = '1';
  return size;
}

/// Users, mounts, networks and IPC of the child's own.
bool take_namespaces() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0) return false;
  std::array<char, 32> map;
  return write_file("/proc/self/setgroups", "deny", 4) &&
         write_file("/proc/self/uid_map", map.data(), write_map(user, map)) &&
         write_file("/proc/self/gid_map", map.data(), write_map(group, map));
}

/// Makes all mounts read-only and the folder an empty file system in memory.
bool close_files(const char* folder) {
  constexpr unsigned kRecursive = 0x8000;  // AT_RECURSIVE
  constexpr uint64_t kReadOnly = 0x1;      // MOUNT_ATTR_RDONLY
  constexpr long kMountSetattr = 442;      // the same on every architecture
  struct {
    uint64_t set, clear, propagation, descriptor;
  } change = {kReadOnly, 0, 0, 0};
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (syscall(kMountSetattr, AT_FDCWD, "/", kRecursive, &change, sizeof(change)) != 0) {
    return false;
  }
  return mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,nr_inodes=1k,mode=0700") ==
         0;
}

/// What no program needs that computes something: sockets, other processes, the kernel's inside.
constexpr int kRefusedCalls[] = {
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept4,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_userfaultfd,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_quotactl,
    SYS_acct,
    SYS_shmget,
    SYS_msgget,
    SYS_semget,
    SYS_mq_open,
    SYS_setpriority,
    SYS_sched_setaffinity,
    SYS_prlimit64,
    425 /* io_uring_setup */,
    424 /* pidfd_send_signal */,
    434 /* pidfd_open */,
    438 /* pidfd_getfd */,
    429 /* move_mount */,
    428 /* open_tree */,
    430 /* fsopen */,
    442 /* mount_setattr */,
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
#endif
};

/// What changes files, beside opening them.
constexpr int kChangingCalls[] = {
    SYS_unlinkat,    SYS_renameat2,    SYS_mkdirat,      SYS_mknodat,       SYS_linkat,
    SYS_symlinkat,   SYS_fchmodat,     SYS_fchmod,       SYS_fchownat,      SYS_fchown,
    SYS_truncate,    SYS_utimensat,    SYS_setxattr,     SYS_lsetxattr,     SYS_fsetxattr,
    SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, 437 /* openat2 */, 452 /* fchmodat2 */,
#if defined(__x86_64__)
    SYS_creat,       SYS_unlink,       SYS_rename,       SYS_renameat,      SYS_mkdir,
    SYS_rmdir,       SYS_mknod,        SYS_link,         SYS_symlink,       SYS_chmod,
    SYS_chown,       SYS_lchown,       SYS_utime,        SYS_utimes,        SYS_futimesat,
#elif defined(__aarch64__)
    SYS_renameat,
#endif
};

/// A seccomp program, put together without allocating.
class FilterProgram {
 public:
  void add(uint16_t code, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    if (size_ < steps_.size()) steps_[size_++] = {code, if_true, if_false, value};
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void give(uint32_t result) { add(BPF_RET | BPF_K, result); }
  void refuse_call(int number, uint32_t error) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1);
    give(SECCOMP_RET_ERRNO | error);
  }
  /// Refuses a call whose argument has one of these bits, or where `unless` is true, has none.
  void refuse_bits(int number, size_t argument, uint32_t bits, bool unless) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4);
    load(offsetof(seccomp_data, args) + 8 * argument);  // its low half: both are little-endian
    add(BPF_JMP | BPF_JSET | BPF_K, bits, unless ? 1 : 0, unless ? 0 : 1);
    give(SECCOMP_RET_ERRNO | EPERM);
    load(offsetof(seccomp_data, nr));
  }
  bool install() {
    if (size_ == steps_.size()) return false;
    const sock_fprog program = {static_cast<unsigned short>(size_), steps_.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  std::array<sock_filter, 512> steps_;
  size_t size_ = 0;
};

bool install_filter(bool refuses_changes) {
  if (kArchitecture == 0) return false;
  FilterProgram filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
  filter.give(SECCOMP_RET_KILL_PROCESS);
  filter.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  filter.add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // the x32 numbers
  filter.give(SECCOMP_RET_KILL_PROCESS);
#endif
  for (const int number : kRefusedCalls) filter.refuse_call(number, EPERM);
  filter.refuse_call(435 /* clone3 */, ENOSYS);  // its flags lie in memory; clone() takes its place
  filter.refuse_bits(SYS_clone, 0, CLONE_THREAD, true);
  if (refuses_changes) {
    for (const int number : kChangingCalls) filter.refuse_call(number, EPERM);
    constexpr uint32_t kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
    filter.refuse_bits(SYS_openat, 2, kWriting, false);
#if defined(__x86_64__)
    filter.refuse_bits(SYS_open, 1, kWriting, false);
#endif
  }
  filter.give(SECCOMP_RET_ALLOW);
  return filter.install();
}

void keep_descriptors(const SandboxPlan& plan) {
  dup2(plan.input, 0);
  dup2(plan.output, 1);
  dup2(plan.output, 2);
  constexpr long kCloseRange = 436;
  constexpr unsigned kCloseOnExec = 4;
  if (syscall(kCloseRange, 3U, ~0U, kCloseOnExec) == 0) return;
  for (int file = 3; file < 65'536; ++file) fcntl(file, F_SETFD, FD_CLOEXEC);
}

}  // namespace

void enter_sandbox(const SandboxPlan& plan) {
  using Step = SandboxFailure::Step;
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  keep_descriptors(plan);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (!give_up_root()) fail_in_child(plan, Step::kUser);
  const bool has_namespaces = plan.limits.has_namespaces && take_namespaces();
  const bool has_mounts = has_namespaces && close_files(plan.folder.c_str());
  if (chdir(plan.folder.c_str()) != 0) fail_in_child(plan, Step::kIsolation);
  if (!set_limits(plan.limits)) fail_in_child(plan, Step::kLimits);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail_in_child(plan, Step::kFilter);
  const bool has_filter = install_filter(!has_mounts);
  if (!has_filter && !has_mounts) fail_in_child(plan, Step::kIsolation);
  execve(plan.arguments[0], const_cast<char* const*>(plan.arguments),
         const_cast<char* const*>(plan.environment));
  fail_in_child(plan, Step::kExec);
}

}  // namespace vitrine::evaluation
