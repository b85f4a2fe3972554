/* Linked into a daemon for tests, in front of the allocator and of the system calls that it makes: any of them can be
 * made to fail, by number. KOPS_FAULTS_FILE names a file that the test shares with it, laid out as struct faults;
 * faults.py has the same. Other processes that the daemon makes are left alone.
 *
 * Each function here stands for the one that its name says behind __wrap_ (the linker's --wrap). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_ALLOC,
    FAULT_MMAP,
    FAULT_MEMFD,
    FAULT_FTRUNCATE,
    FAULT_RECEIVE,
    FAULT_SEND,
    FAULT_ACCEPT,
    FAULT_GETSOCKOPT,
    FAULT_SOCKET,
    FAULT_EPOLL,
    FAULT_EPOLL_WAIT,
    FAULT_EVENTFD,
    FAULT_TIMERFD,
    FAULT_PIPE,
    FAULT_FSTAT,
    FAULT_FCNTL,
    FAULT_OPEN,
    FAULT_PIDFD,
    FAULT_FOLDER,
    FAULT_KINDS = 32
};

/* Instead of an errno: it succeeds with one byte. */
enum { FAULT_SHORT = -1 };

struct faults {
    _Atomic uint64_t owner;            /* the process that counts: the first that finds a 0 here */
    _Atomic uint64_t on;               /* calls are counted, and fail */
    _Atomic uint64_t kind, nth, lasts; /* from the nth of a kind on, so many fail */
    _Atomic int64_t how;
    _Atomic uint64_t fired; /* how many did */
    uint64_t reserved;
    _Atomic uint64_t counts[FAULT_KINDS];
};

static struct faults nowhere, *faults = &nowhere;
static pid_t owner;

__attribute__((constructor)) static void open_faults(void)
{
    const char *path = getenv("KOPS_FAULTS_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint64_t nobody = 0;

    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED)
        return;
    owner = getpid();
    /* A compiling process is this program, too. */
    if (atomic_compare_exchange_strong(&((struct faults *)at)->owner, &nobody, (uint64_t)owner))
        faults = at;
}

/* Counts a call; 0, or how it is to fail: an errno, or FAULT_SHORT. */
static int64_t count(enum fault_kind kind)
{
    uint64_t n, nth;

    if (!atomic_load_explicit(&faults->on, memory_order_relaxed) || getpid() != owner)
        return 0;
    n = atomic_fetch_add(&faults->counts[kind], 1) + 1;
    nth = atomic_load(&faults->nth);
    if (atomic_load(&faults->kind) != kind || n < nth || n - nth >= atomic_load(&faults->lasts))
        return 0;
    atomic_fetch_add(&faults->fired, 1);
    return (int64_t)atomic_load(&faults->how);
}

static bool fails(enum fault_kind kind)
{
    int64_t how = count(kind);

    if (how)
        errno = (int)how;
    return how != 0;
}

#define REAL(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

/* A function that does nothing but fail, with that result. */
#define FAILS(type, name, kind, failed, parameters, arguments)                                                         \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        return fails(kind) ? (failed) : __real_##name arguments;                                                       \
    }                                                                                                                  \
    _Static_assert(1, "a semicolon")

/* ---- memory ---- */

FAILS(void *, malloc, FAULT_ALLOC, NULL, (size_t size), (size));
FAILS(void *, calloc, FAULT_ALLOC, NULL, (size_t n, size_t size), (n, size));
FAILS(void *, realloc, FAULT_ALLOC, NULL, (void *old, size_t size), (old, size));
FAILS(void *, aligned_alloc, FAULT_ALLOC, NULL, (size_t alignment, size_t size), (alignment, size));
FAILS(int, posix_memalign, FAULT_ALLOC, ENOMEM, (void **ret, size_t alignment, size_t size), (ret, alignment, size));
FAILS(char *, strdup, FAULT_ALLOC, NULL, (const char *text), (text));
FAILS(char *, strndup, FAULT_ALLOC, NULL, (const char *text, size_t n), (text, n));
FAILS(void *, mmap, FAULT_MMAP, MAP_FAILED, (void *at, size_t length, int protection, int flags, int fd, off_t offset),
      (at, length, protection, flags, fd, offset));
FAILS(int, memfd_create, FAULT_MEMFD, -1, (const char *name, unsigned flags), (name, flags));
FAILS(int, ftruncate, FAULT_FTRUNCATE, -1, (int fd, off_t length), (fd, length));

/* ---- sockets ---- */

REAL(ssize_t, recvmsg, int fd, struct msghdr *message, int flags)
{
    int64_t how = count(FAULT_RECEIVE);
    struct iovec first;
    ssize_t n;

    if (how > 0) {
        errno = (int)how;
        return -1;
    }
    if (how == 0 || !message->msg_iovlen)
        return __real_recvmsg(fd, message, flags);
    first = message->msg_iov[0];
    message->msg_iov[0].iov_len = first.iov_len ? 1 : 0;
    n = __real_recvmsg(fd, message, flags);
    message->msg_iov[0] = first;
    return n;
}

REAL(ssize_t, recv, int fd, void *at, size_t n, int flags)
{
    int64_t how = count(FAULT_RECEIVE);

    if (how > 0) {
        errno = (int)how;
        return -1;
    }
    return __real_recv(fd, at, how && n ? 1 : n, flags);
}

REAL(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags)
{
    int64_t how = count(FAULT_SEND);
    struct msghdr shorter = *message;
    struct iovec first;

    if (how > 0) {
        errno = (int)how;
        return -1;
    }
    if (how == 0 || message->msg_iovlen != 1)
        return __real_sendmsg(fd, message, flags);
    first = message->msg_iov[0];
    first.iov_len = first.iov_len ? 1 : 0;
    shorter.msg_iov = &first;
    return __real_sendmsg(fd, &shorter, flags);
}

REAL(ssize_t, send, int fd, const void *at, size_t n, int flags)
{
    int64_t how = count(FAULT_SEND);

    if (how > 0) {
        errno = (int)how;
        return -1;
    }
    return __real_send(fd, at, how && n ? 1 : n, flags);
}

/* What came and was not taken stays in the queue, as with the kernel. */
FAILS(int, accept4, FAULT_ACCEPT, -1, (int fd, struct sockaddr *address, socklen_t *length, int flags),
      (fd, address, length, flags));
FAILS(int, getsockopt, FAULT_GETSOCKOPT, -1, (int fd, int level, int name, void *value, socklen_t *length),
      (fd, level, name, value, length));
FAILS(int, socketpair, FAULT_SOCKET, -1, (int domain, int type, int protocol, int fds[2]),
      (domain, type, protocol, fds));
FAILS(int, socket, FAULT_SOCKET, -1, (int domain, int type, int protocol), (domain, type, protocol));

/* ---- waiting ---- */

FAILS(int, epoll_create1, FAULT_EPOLL, -1, (int flags), (flags));

/* Only adding takes memory, and what is there already is refused before any is taken. */
REAL(int, epoll_ctl, int epoll, int op, int fd, struct epoll_event *event)
{
    int r = __real_epoll_ctl(epoll, op, fd, event), before = errno;

    if (r == 0 && op == EPOLL_CTL_ADD && fails(FAULT_EPOLL)) {
        before = errno;
        __real_epoll_ctl(epoll, EPOLL_CTL_DEL, fd, event);
        r = -1;
    }
    errno = before;
    return r;
}

/* An interruption is all that the kernel may answer. */
FAILS(int, epoll_wait, FAULT_EPOLL_WAIT, -1, (int epoll, struct epoll_event *events, int n, int timeout),
      (epoll, events, n, timeout));
FAILS(int, epoll_pwait, FAULT_EPOLL_WAIT, -1,
      (int epoll, struct epoll_event *events, int n, int timeout, const sigset_t *mask),
      (epoll, events, n, timeout, mask));
FAILS(int, eventfd, FAULT_EVENTFD, -1, (unsigned value, int flags), (value, flags));
FAILS(int, timerfd_create, FAULT_TIMERFD, -1, (int clock, int flags), (clock, flags));
FAILS(int, pipe2, FAULT_PIPE, -1, (int fds[2], int flags), (fds, flags));

/* ---- descriptors ---- */

FAILS(int, fstat, FAULT_FSTAT, -1, (int fd, struct stat *at), (fd, at));

REAL(int, fcntl, int fd, int command, ...)
{
    va_list arguments;
    long value;

    va_start(arguments, command);
    value = va_arg(arguments, long); /* a number or a pointer, and as wide either way */
    va_end(arguments);
    return fails(FAULT_FCNTL) ? -1 : __real_fcntl(fd, command, value);
}

REAL(int, open, const char *path, int flags, ...)
{
    va_list arguments;
    unsigned mode;

    va_start(arguments, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    return fails(FAULT_OPEN) ? -1 : __real_open(path, flags, mode);
}

REAL(int, openat, int folder, const char *path, int flags, ...)
{
    va_list arguments;
    unsigned mode;

    va_start(arguments, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    return fails(FAULT_OPEN) ? -1 : __real_openat(folder, path, flags, mode);
}

FAILS(FILE *, fopen, FAULT_OPEN, NULL, (const char *path, const char *mode), (path, mode));

/* Opening one, and each of its entries. */
FAILS(DIR *, opendir, FAULT_FOLDER, NULL, (const char *path), (path));
FAILS(DIR *, fdopendir, FAULT_FOLDER, NULL, (int fd), (fd));
FAILS(struct dirent *, readdir, FAULT_FOLDER, NULL, (DIR * folder), (folder));

/* Of those without a function only what a connection needs. */
/* Reads as many arguments as a call may have, the last of which may be none but the caller's stack. */
__attribute__((no_sanitize_address)) long __wrap_syscall(long number, ...);
REAL(long, syscall, long number, ...)
{
    va_list arguments;
    long a[6];

    va_start(arguments, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    return number == SYS_pidfd_open && fails(FAULT_PIDFD) ? -1
                                                          : __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
