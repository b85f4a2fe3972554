/* The file through which a test tells inject.c what is to fail; faults.py has the same. */
#ifndef KOPS_TESTS_FAULTS_LAYOUT_H
#define KOPS_TESTS_FAULTS_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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

#endif
