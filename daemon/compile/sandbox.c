#include "compile/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sandbox/filter.h"
#include "sandbox/process.h"

bool sandbox_available(struct error *e)
{
    if (!files_version()) {
        error_set(
            e, ERROR_UNSUPPORTED,
            "compiling is switched off: this kernel has no Landlock (%s), which keeps sources from reading files; "
            "enable it (lsm=landlock,…), or set server.sandbox to best_effort",
            strerror(errno));
        return false;
    }
    if (!calls_available()) {
        error_set(e, ERROR_UNSUPPORTED,
                  "compiling is switched off: this kernel has no seccomp filters; set server.sandbox to best_effort");
        return false;
    }
    return true;
}

static int failed(struct error *e)
{
    return error_prefix(e, "no sandbox for the compiler (server.sandbox): ");
}

int sandbox_drop_privileges(const char *user, int parent, struct error *e)
{
    if (user && geteuid() == 0 && process_become(user, false, e) < 0)
        return error_prefix(e, "the compiler cannot change its user: ");
    if ((user && process_drop_capabilities(e) < 0) || process_refuse_privileges(e) < 0)
        return failed(e);
    if (process_bind_to_parent(parent) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "the daemon has gone");
    return 0;
}

int sandbox_enter_landlock(const char *const *directories, unsigned n, struct error *e)
{
    struct files files;

    if (files_begin(&files, e) < 0)
        return failed(e);
    for (unsigned i = 0; i < n; i++) {
        if (files_allow(&files, directories[i], FILES_READ, NULL) < 0) {
            error_set(e, ERROR_UNSUPPORTED, "the compiler cannot read %.100s: %s (kernels.include)", directories[i],
                      strerror(errno));
            files_abandon(&files);
            return -1;
        }
    }
    return files_enter(&files, e) < 0 ? failed(e) : 0;
}

uint64_t sandbox_address_space(int statm)
{
    char text[64];
    ssize_t n = pread(statm, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return 0;
    text[n] = '\0';
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int sandbox_limit(const struct sandbox_limits *limits, struct error *e)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    if (process_limit(RLIMIT_AS, limits->memory_bytes) < 0 || process_limit(RLIMIT_CORE, 0) < 0 ||
        process_limit(RLIMIT_FSIZE, 0) < 0 || process_limit(RLIMIT_NOFILE, limits->files) < 0 ||
        process_limit(RLIMIT_CPU, (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 2 + limits->cpu_s) < 0) {
        error_set(e, ERROR_UNSUPPORTED, "limits: %s", strerror(errno));
        return failed(e);
    }
    return 0;
}

static const int for_all[] = {SCMP_SYS(sched_get_priority_max), SCMP_SYS(sched_get_priority_min), SCMP_SYS(setrlimit),
                              SCMP_SYS(times)};

static const int for_forking[] = {SCMP_SYS(fork),    SCMP_SYS(wait4),      SCMP_SYS(pidfd_open), SCMP_SYS(sendmsg),
                                  SCMP_SYS(recvmsg), SCMP_SYS(dup2),       SCMP_SYS(dup3),       SCMP_SYS(prctl),
                                  SCMP_SYS(seccomp), SCMP_SYS(close_range)};

#define ALLOW(call, ...) seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(call), 1, __VA_ARGS__)

static int fill(scmp_filter_ctx filter, bool forks)
{
    const uint64_t others = CLONE_VM | CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                            CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    int r = calls_add(filter, SCMP_ACT_ALLOW, calls_common, calls_common_n);

    if (!r)
        r = calls_add(filter, SCMP_ACT_ALLOW, for_all, sizeof(for_all) / sizeof(for_all[0]));
    r = r ? r : ALLOW(mmap, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(mprotect, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    r = r ? r : ALLOW(prlimit64, SCMP_A0(SCMP_CMP_EQ, 0)); /* limits of the process itself only */
    if (!r && forks)
        r = ALLOW(clone, SCMP_A0(SCMP_CMP_MASKED_EQ, others, 0));
    if (!r && forks)
        r = calls_add(filter, SCMP_ACT_ALLOW, for_forking, sizeof(for_forking) / sizeof(for_forking[0]));
    return r;
}

int sandbox_enter_seccomp(bool forks, struct error *e)
{
    scmp_filter_ctx filter = calls_new(SCMP_ACT_ERRNO(EPERM));

    if (calls_enter(filter, filter ? fill(filter, forks) : 0, false, e) < 0)
        return failed(e);
    return 0;
}
