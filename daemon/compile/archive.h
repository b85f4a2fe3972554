/* Modules for another daemon's cache, in one file: a header with count and size, then per module its length,
 * compiled_serialize()'s bytes and a BLAKE2b-256 of both. The hash has no key: it finds damage, not malice. An import
 * trusts the archive's maker.
 *
 * Thread: any; a reader or writer has one user at a time. Functions that read or write a file block. */
#ifndef KOPS_COMPILE_ARCHIVE_H
#define KOPS_COMPILE_ARCHIVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "compile/compiled.h"
#include "util/buffer.h"
#include "util/error.h"

enum { ARCHIVE_HEADER_BYTES = 32, ARCHIVE_MAX_MODULES = 1 << 16 };

struct archive_writer {
    int fd; /* borrowed; empty at the start */
    uint64_t bytes, count;
    struct buffer buffer;
};

int archive_begin(struct archive_writer *w, int fd, struct error *e);
int archive_add(struct archive_writer *w, const struct compiled *compiled, struct error *e);
/* Completes the archive, which readers otherwise refuse. */
int archive_end(struct archive_writer *w, struct error *e);
/* Frees the writer's memory, in every case. */
void archive_writer_free(struct archive_writer *w);

typedef ssize_t archive_read(void *context, void *into, size_t size, uint64_t at);

struct archive_reader {
    archive_read *read;
    void *context;
    uint64_t size, at; /* the file's size; bytes read so far */
    uint64_t count, seen;
    unsigned char *record; /* owned */
    size_t capacity;
};

/* Sets up a reader of a regular file or memfd, from its start. ERROR_INVALID_FD for other descriptors. */
int archive_open_fd(struct archive_reader *r, int *fd, struct error *e);
int archive_open(struct archive_reader *r, archive_read *read, void *context, uint64_t size, struct error *e);

/* Reads the next module. 1: *ret_compiled is the module (a reference), checked for itself and against its binary; 0:
 * there are no more, and no bytes follow; -1: the archive is damaged. A reader that has failed must not be used again.
 */
int archive_next(struct archive_reader *r, struct compiled **ret_compiled, struct error *e);
void archive_reader_free(struct archive_reader *r);

#endif
