/* The sockets between the daemon and an executor: calls of the daemon, for what may block, a request and its reply on a
 * socket of sequenced packets, with descriptors; and bells. Several sockets take several calls at once. */
#ifndef KOPS_EXECUTOR_CALL_H
#define KOPS_EXECUTOR_CALL_H

#include "backend/backend.h"

enum call_kind {
    CALL_ACTIVATE,      /* the device: its context is made */
    CALL_IMPORT,        /* a client's device memory, under `handle` */
    CALL_ALLOC,         /* device memory of the daemon's own, under `handle`; the reply has its descriptor */
    CALL_MAP_HOST,      /* shared host memory, under `handle`; with `attach` for signals */
    CALL_EXTEND,        /* more allocations behind those of `handle` */
    CALL_CLOSE,         /* the memory of `handle` */
    CALL_CODE_LOAD,     /* a binary, as a descriptor of `size` bytes */
    CALL_CODE_UNLOAD,   /* `code`, behind the records up to `position` of the ring */
    CALL_CODE_FUNCTION, /* the entry of `code` whose name is the text */
    CALL_MEMORY_FREE,
};

enum {
    CALL_TEXT_MAX = 16 << 10,
    CALL_FDS_MAX = BACKEND_IMPORT_FDS,
    CALL_CHANNELS = 8,   /* calls at one time: as many as the daemon's pool has threads */
    CALL_CONTROL_FD = 3, /* descriptor that an executor starts with */
};

/* Descriptors in the first message to an executor. */
enum {
    FIRST_REGION,
    FIRST_BELL,
    FIRST_CHANNELS,
    FIRST_TUNING = FIRST_CHANNELS + CALL_CHANNELS, /* the table of core/tuning.h; left out where there is none */
    FIRST_FDS,
};
_Static_assert((int)FIRST_FDS <= (int)CALL_FDS_MAX, "a message carries so many");

struct call_request {
    uint32_t kind, device, handle, attach;
    uint64_t size, code, position;
    struct backend_import import; /* CALL_IMPORT, CALL_EXTEND; its descriptors come beside the message */
    uint32_t n_fds, text_size;    /* the text follows the struct */
};

struct call_reply {
    int32_t result; /* 0, or negative: `error` */
    uint32_t n_fds;
    struct error error;
    uint64_t size, address, code;
    struct backend_function function;
};

/* For both ends. They return 0, or -1 where the other end is gone or its bytes are no message. The sender keeps its
 * descriptors; the receiver owns those it gets. ret_fds has room for CALL_FDS_MAX. */
int call_send_request(int socket, const struct call_request *request, const char *text, const int *fds);
int call_receive_request(int socket, struct call_request *ret, char text[CALL_TEXT_MAX], int *ret_fds);
/* Where this process has no room for the reply's descriptors, ret->n_fds is 0. */
int call_receive_reply(int socket, struct call_reply *ret, int *ret_fds);

/* A message of raw bytes with up to 16 descriptors: the first words between a daemon and its executor. Returns the
 * bytes received; -1 as above. *ret_n: descriptors received. */
int call_send(int socket, const void *data, uint32_t size, const int *fds, unsigned n);
int call_receive(int socket, void *data, uint32_t size, int *ret_fds, unsigned *ret_n);

/* A bell: a pair of nonblocking stream sockets, where a byte from one end wakes who waits at the other. Thread: any.
 *
 * An eventfd would be one file description for both ends: an executor could clear O_NONBLOCK there and make the
 * daemon's calls block. The ends of a pair have a description each. */

/* Both ends, close-on-exec, the caller's. Returns 0, or -1 with errno. */
int bell_new(int ret_ends[2]);
/* Wakes the other end. A bell that is full wakes it anyway. */
void bell_ring(int end);
/* Takes what the other end has written, a bounded amount: the rest keeps the descriptor readable. */
void bell_silence(int end);

#endif
