/* A reply as it came, for callers that decode it themselves. */
#ifndef KOPS_CLIENT_REPLY_H
#define KOPS_CLIENT_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NATIVE_MAX_FDS = 16 };

/* Zeroed before its first use; `data` is kept from call to call and grows. */
struct native_reply {
    char *data; /* the result's map, or the error's: one MessagePack value */
    size_t length;
    size_t capacity;
    bool is_error;
    unsigned n_fds;
    int fds[NATIVE_MAX_FDS]; /* the receiver's to close */
    uint32_t generation;     /* of the connection that answered */
};

/* Frees the bytes, closes the descriptors, and zeroes the rest. Takes NULL. */
void native_reply_free(struct native_reply *r);

#endif
