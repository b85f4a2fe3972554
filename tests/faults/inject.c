/* Linked into a daemon for tests, in front of the allocator and of the system calls that it makes: any of them can be
 * made to fail, by number. KOPS_FAULTS_FILE names a file that the test shares with it; layout.h says what is in it.
 * Other processes that the daemon makes are left alone.
 *
 * Each function here stands for the one that its name says behind __wrap_ (the linker's --wrap). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
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

#include "layout.h"

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

/* ---- memory ---- */

REAL(void *, malloc, size_t size)
{
    return fails(FAULT_ALLOC) ? NULL : __real_malloc(size);
}

REAL(void *, calloc, size_t n, size_t size)
{
    return fails(FAULT_ALLOC) ? NULL : __real_calloc(n, size);
}

REAL(void *, realloc, void *old, size_t size)
{
    return fails(FAULT_ALLOC) ? NULL : __real_realloc(old, size);
}

REAL(void *, aligned_alloc, size_t alignment, size_t size)
{
    return fails(FAULT_ALLOC) ? NULL : __real_aligned_alloc(alignment, size);
}

REAL(int, posix_memalign, void **ret, size_t alignment, size_t size)
{
    return fails(FAULT_ALLOC) ? ENOMEM : __real_posix_memalign(ret, alignment, size);
}

REAL(char *, strdup, const char *text)
{
    return fails(FAULT_ALLOC) ? NULL : __real_strdup(text);
}

REAL(char *, strndup, const char *text, size_t n)
{
    return fails(FAULT_ALLOC) ? NULL : __real_strndup(text, n);
}

REAL(void *, mmap, void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    return fails(FAULT_MMAP) ? MAP_FAILED : __real_mmap(at, length, protection, flags, fd, offset);
}

REAL(int, memfd_create, const char *name, unsigned flags)
{
    return fails(FAULT_MEMFD) ? -1 : __real_memfd_create(name, flags);
}

REAL(int, ftruncate, int fd, off_t length)
{
    return fails(FAULT_FTRUNCATE) ? -1 : __real_ftruncate(fd, length);
}

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
REAL(int, accept4, int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    return fails(FAULT_ACCEPT) ? -1 : __real_accept4(fd, address, length, flags);
}

REAL(int, getsockopt, int fd, int level, int name, void *value, socklen_t *length)
{
    return fails(FAULT_GETSOCKOPT) ? -1 : __real_getsockopt(fd, level, name, value, length);
}

REAL(int, socketpair, int domain, int type, int protocol, int fds[2])
{
    return fails(FAULT_SOCKET) ? -1 : __real_socketpair(domain, type, protocol, fds);
}

REAL(int, socket, int domain, int type, int protocol)
{
    return fails(FAULT_SOCKET) ? -1 : __real_socket(domain, type, protocol);
}

/* ---- waiting ---- */

REAL(int, epoll_create1, int flags)
{
    return fails(FAULT_EPOLL) ? -1 : __real_epoll_create1(flags);
}

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
REAL(int, epoll_wait, int epoll, struct epoll_event *events, int n, int timeout)
{
    return fails(FAULT_EPOLL_WAIT) ? -1 : __real_epoll_wait(epoll, events, n, timeout);
}

REAL(int, epoll_pwait, int epoll, struct epoll_event *events, int n, int timeout, const sigset_t *mask)
{
    return fails(FAULT_EPOLL_WAIT) ? -1 : __real_epoll_pwait(epoll, events, n, timeout, mask);
}

REAL(int, eventfd, unsigned value, int flags)
{
    return fails(FAULT_EVENTFD) ? -1 : __real_eventfd(value, flags);
}

REAL(int, timerfd_create, int clock, int flags)
{
    return fails(FAULT_TIMERFD) ? -1 : __real_timerfd_create(clock, flags);
}

REAL(int, pipe2, int fds[2], int flags)
{
    return fails(FAULT_PIPE) ? -1 : __real_pipe2(fds, flags);
}

/* ---- descriptors ---- */

REAL(int, fstat, int fd, struct stat *at)
{
    return fails(FAULT_FSTAT) ? -1 : __real_fstat(fd, at);
}

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

REAL(FILE *, fopen, const char *path, const char *mode)
{
    return fails(FAULT_OPEN) ? NULL : __real_fopen(path, mode);
}

/* Opening one, and each of its entries. */
REAL(DIR *, opendir, const char *path)
{
    return fails(FAULT_FOLDER) ? NULL : __real_opendir(path);
}

REAL(DIR *, fdopendir, int fd)
{
    return fails(FAULT_FOLDER) ? NULL : __real_fdopendir(fd);
}

REAL(struct dirent *, readdir, DIR *folder)
{
    return fails(FAULT_FOLDER) ? NULL : __real_readdir(folder);
}

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
