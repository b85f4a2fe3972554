/* Messages between the daemon and its helper processes. Both are the same program, so numbers and structs are sent as
 * they are in memory. A process that compiles has read an untrusted source, so the daemon checks every message of it.
 *
 * Control socket (SOCK_SEQPACKET), between the daemon and the helper that forks: one struct a message. A process's own
 * socket (SOCK_STREAM): frames, each a header and its body.
 *
 * Pure functions; any thread. */
#ifndef KOPS_COMPILE_HELPER_WIRE_H
#define KOPS_COMPILE_HELPER_WIRE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "compile/compiler.h"
#include "util/buffer.h"

/* First message to the helper. The paths of the folders of headers follow, a message each, with their ending zeros. */
struct helper_setup {
    enum compiler_sandbox sandbox;
    unsigned memory_mib, time_s;
    bool alone; /* for tests: behave as if forking were unsafe */
    unsigned n_includes, n_trees;
    uint64_t stamp; /* the trees' */
    char nvrtc[PATH_MAX], user[256];
};

/* Message to the helper: fork a process that serves the socket which comes along. */
struct helper_command {
    uint64_t id; /* the process's, the daemon's choice */
};

enum helper_event_kind {
    HELPER_READY = 1, /* can fork */
    HELPER_FAILED,    /* cannot, and ends: `code`, `text` */
    HELPER_FORKED,    /* `id` runs; its pidfd comes with the message */
    HELPER_EXITED,    /* `id` has ended, or (status -1) could not be forked */
};

struct helper_event {
    uint32_t kind;
    uint32_t code;         /* enum error_code */
    uint32_t major, minor; /* HELPER_READY: of the compiler */
    uint64_t id;
    int32_t status;               /* as from wait() */
    uint32_t alone;               /* HELPER_READY: this process cannot fork; it serves one socket itself */
    uint64_t peak_kib;            /* HELPER_EXITED: most memory that it had */
    char text[ERROR_MESSAGE_MAX]; /* HELPER_READY: the sandbox's missing parts, "" when none */
};

enum frame_kind {
    FRAME_WARM = 1, /* from the process: it waits for a request */
    FRAME_REQUEST,  /* to the process */
    FRAME_COMPILED, /* body: compiled_serialize() */
    FRAME_FAILED,   /* body: see struct frame_failure */
};

struct frame_header {
    uint32_t kind, length; /* the body's */
};

enum { FRAME_MAX_ANSWER = COMPILED_MAX_IMAGE + COMPILED_MAX_LOG + (4 << 20) };
enum { FRAME_MAX_REQUEST = COMPILER_MAX_INPUT + (4 << 20) };

enum failure_reason { FAILURE_SOURCE, FAILURE_ENTRY, FAILURE_MEMORY, FAILURE_CRASH, FAILURE_TIME, FAILURE_REASONS };

const char *failure_reason_name(enum failure_reason reason);

/* The body of FRAME_FAILED; the log follows it. */
struct frame_failure {
    uint32_t code;   /* enum error_code */
    uint32_t reason; /* enum failure_reason; only with ERROR_COMPILE_FAILED */
    char message[ERROR_MESSAGE_MAX];
};

/* Appends a frame's header; returns the place of its body. */
size_t frame_begin(struct buffer *into, enum frame_kind kind);
/* Completes the body. into->failed when it is longer than `max`. */
void frame_end(struct buffer *into, size_t begin, size_t max);

/* A request as it was read: the texts lie in `bytes`, each with an ending zero. */
struct request {
    struct compile_input input;
    struct compile_file *files;
    const char **options, **entries;
};

/* Reads the body of FRAME_REQUEST; refuses (-1) bytes that request_copy() would not make. */
int request_decode(const void *bytes, size_t size, struct request *ret_request);

/* Copies `input`, with its texts in `frame`, the frame that it is sent in. -1: it is too large, or memory is short. */
int request_copy(const struct compile_input *input, struct buffer *frame, struct request *ret_request);
void request_free(struct request *request);

/* Returns the length of the UTF-8 character at `text`; 0: none, or a control character other than tab and newline. */
size_t text_character(const char *text, size_t left);

/* Makes `text` printable: bytes that are no UTF-8, and control characters other than tab and newline, become '?'. In
 * place; returns whether there were any. */
bool text_clean(char *text, size_t length);

#endif
