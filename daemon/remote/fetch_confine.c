/* The helper's sandbox: no files but certificates and the resolver's configuration, no sockets but those of the
 * internet, no new processes, bounded memory. */
#include <errno.h>
#include <netdb.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "remote/fetch_internal.h"
#include "sandbox/calls.h"
#include "sandbox/files.h"
#include "sandbox/process.h"

enum { MEMORY = 1 << 30, FILES = 256 };

/* Of these there are what the system has. Landlock follows links when the rule is made: resolv.conf is often one to a
 * file below /run, which is replaced at each change, so that its folder counts. */
static const char *const readable[] = {
    /* Certificates of authorities. */
    "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
    "/usr/lib/ssl", "/usr/share/pki", "/etc/crypto-policies",
    /* Names of hosts. */
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
    "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
    /* What these libraries load late. */
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/urandom", "/usr/share/zoneinfo",
    "/etc/localtime"};

static const int allowed[] = {
    /* Files: which ones, Landlock says. */
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(lseek),
    SCMP_SYS(close), SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat),
    SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents64), SCMP_SYS(getcwd), SCMP_SYS(memfd_create),
    SCMP_SYS(fcntl), SCMP_SYS(ftruncate), SCMP_SYS(dup), SCMP_SYS(pipe), SCMP_SYS(pipe2), SCMP_SYS(eventfd2),
    /* Sockets: which ones, see below. */
    SCMP_SYS(connect), SCMP_SYS(bind), SCMP_SYS(getsockname), SCMP_SYS(getpeername), SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt), SCMP_SYS(sendto), SCMP_SYS(recvfrom), SCMP_SYS(sendmsg), SCMP_SYS(recvmsg),
    SCMP_SYS(sendmmsg), SCMP_SYS(recvmmsg), SCMP_SYS(shutdown), SCMP_SYS(socketpair), SCMP_SYS(ioctl), SCMP_SYS(poll),
    SCMP_SYS(ppoll), SCMP_SYS(select), SCMP_SYS(pselect6), SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),
    /* Memory; execution is below. */
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise),
    /* The process itself and its threads, which look up names. */
    SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid),
    SCMP_SYS(tgkill), SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(set_robust_list),
    SCMP_SYS(set_tid_address), SCMP_SYS(rseq), SCMP_SYS(restart_syscall), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(getrlimit), SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname),
    SCMP_SYS(getrandom), SCMP_SYS(prctl),
    /* Time. */
    SCMP_SYS(time), SCMP_SYS(gettimeofday), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep)};

/* The internet's, and that of the kernel which tells the C library which addresses this machine has. */
static const int families[] = {AF_INET, AF_INET6, AF_NETLINK};

static int enter_files(const struct remote_setup *s, struct error *e)
{
    struct files files;

    if (files_begin_with_network(&files, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(readable) / sizeof(readable[0]); i++)
        files_allow(&files, readable[i], FILES_READ, NULL); /* many are not there */
    if (*s->ca && files_allow(&files, s->ca, FILES_READ, NULL) < 0) {
        error_set(e, ERROR_UNSUPPORTED, "%.100s: %s (cache.remote_ca)", s->ca, strerror(errno));
        files_abandon(&files);
        return -1;
    }
    return files_enter(&files, e);
}

static int fill(scmp_filter_ctx filter)
{
    int r = calls_add(filter, SCMP_ACT_ALLOW, allowed, sizeof(allowed) / sizeof(allowed[0]));

    for (size_t i = 0; !r && i < sizeof(families) / sizeof(families[0]); i++)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
    if (!r) /* threads, no processes; of clone3() a filter sees no flags, and the C library falls back to clone() */
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    if (!r)
        r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    if (!r) /* a library that is loaded late is mapped for execution, never for that and for writing */
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_WRITE, PROT_EXEC));
    if (!r)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (!r)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (!r) /* limits of the process itself only */
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, SCMP_A0(SCMP_CMP_EQ, 0));
    return r;
}

static int enter_calls(struct error *e)
{
    scmp_filter_ctx filter = calls_new(SCMP_ACT_ERRNO(EPERM));

    return calls_enter(filter, filter ? fill(filter) : 0, true, e);
}

/* Loads what the C library looks names up with, which is not found later. */
static void warm_resolver(void)
{
    struct addrinfo *found = NULL;

    if (getaddrinfo("localhost", "80", NULL, &found) == 0)
        freeaddrinfo(found);
}

/* A sanitizer reserves more addresses than any limit leaves. */
#ifdef __SANITIZE_ADDRESS__
static const bool bounds_memory = false;
#else
static const bool bounds_memory = true;
#endif

static int limit(const struct remote_setup *s, struct error *e)
{
    if ((bounds_memory && process_limit(RLIMIT_AS, MEMORY) < 0) || process_limit(RLIMIT_CORE, 0) < 0 ||
        process_limit(RLIMIT_FSIZE, s->max_bytes) < 0 || process_limit(RLIMIT_NOFILE, FILES) < 0)
        return error_set(e, ERROR_UNSUPPORTED, "limits: %s", strerror(errno));
    return 0;
}

static void note(struct fetch *f, const struct error *e)
{
    memcpy(f->lacking, e->message, sizeof(f->lacking));
}

int fetch_confine(struct fetch *f, const char *user, struct error *e)
{
    if (geteuid() == 0 && process_become(user, false, e) < 0)
        return -1;
    if (process_drop_capabilities(e) < 0 || process_refuse_privileges(e) < 0)
        return -1;
    if (chdir("/") < 0)
        return error_set(e, ERROR_UNSUPPORTED, "entering /: %s", strerror(errno));
    if (curl_open(&f->curl, e) < 0 || limit(&f->setup, e) < 0)
        return -1;
    warm_resolver();
    if (enter_files(&f->setup, e) < 0) {
        if (!files_version()) /* of an old kernel */
            note(f, e);
        else
            return -1;
    }
    if (enter_calls(e) < 0)
        note(f, e);
    return 0;
}
