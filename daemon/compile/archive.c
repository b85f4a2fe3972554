#include "compile/archive.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/cache.h"

enum { LENGTH_BYTES = 8, SUM_BYTES = 32 };

static const unsigned char magic[16] = "KOPS archive 1";

static int write_all(int fd, const void *bytes, size_t size, struct error *e)
{
    if (cache_write_all(fd, bytes, size) == 0)
        return 0;
    return error_set(e, ERROR_OUT_OF_MEMORY, "writing the archive: %s", strerror(errno));
}

int archive_begin(struct archive_writer *w, int fd, struct error *e)
{
    static const unsigned char empty[ARCHIVE_HEADER_BYTES];

    *w = (struct archive_writer){.fd = fd, .bytes = ARCHIVE_HEADER_BYTES};
    buffer_init(&w->buffer, LENGTH_BYTES + CACHE_PAYLOAD_MAX + SUM_BYTES);
    return write_all(fd, empty, sizeof(empty), e);
}

int archive_add(struct archive_writer *w, const struct compiled *compiled, struct error *e)
{
    unsigned char length[LENGTH_BYTES] = {0}, sum[SUM_BYTES];
    struct buffer *b = &w->buffer;

    if (w->count == ARCHIVE_MAX_MODULES) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "an archive holds at most %d modules", ARCHIVE_MAX_MODULES);
        return error_detail_number(e, "limit", ARCHIVE_MAX_MODULES);
    }
    buffer_consume(b, buffer_length(b));
    buffer_append(b, length, sizeof(length));
    compiled_serialize(compiled, b);
    if (!b->failed) {
        cache_put64(b->data + b->start, buffer_length(b) - LENGTH_BYTES);
        crypto_generichash(sum, sizeof(sum), b->data + b->start, buffer_length(b), NULL, 0);
        buffer_append(b, sum, sizeof(sum));
    }
    if (b->failed)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the archive");
    if (write_all(w->fd, b->data + b->start, buffer_length(b), e) < 0)
        return -1;
    w->bytes += buffer_length(b);
    w->count++;
    return 0;
}

int archive_end(struct archive_writer *w, struct error *e)
{
    unsigned char header[ARCHIVE_HEADER_BYTES];

    memcpy(header, magic, sizeof(magic));
    cache_put64(header + 16, w->count);
    cache_put64(header + 24, w->bytes);
    if (pwrite(w->fd, header, sizeof(header), 0) != sizeof(header) || lseek(w->fd, 0, SEEK_SET) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "writing the archive: %s", strerror(errno));
    return 0;
}

void archive_writer_free(struct archive_writer *w)
{
    buffer_free(&w->buffer);
}

static int damaged(struct error *e, const char *why)
{
    return error_at(e, ERROR_INVALID_ARGUMENT, "", "fd", why);
}

static int fetch(struct archive_reader *r, void *into, size_t size, struct error *e)
{
    unsigned char *at = into;

    if (size > r->size - r->at)
        return damaged(e, "the archive is cut off");
    while (size) {
        ssize_t n = r->read(r->context, at, size, r->at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_at(e, ERROR_INVALID_FD, "", "fd", strerror(errno));
        if (!n)
            return damaged(e, "the archive is cut off");
        at += n;
        size -= (size_t)n;
        r->at += (uint64_t)n;
    }
    return 0;
}

int archive_open(struct archive_reader *r, archive_read *read, void *context, uint64_t size, struct error *e)
{
    unsigned char header[ARCHIVE_HEADER_BYTES];

    *r = (struct archive_reader){.read = read, .context = context, .size = size};
    if (fetch(r, header, sizeof(header), e) < 0)
        return -1;
    r->count = cache_get64(header + 16);
    if (memcmp(header, magic, sizeof(magic)) != 0)
        return damaged(e, "it is no archive of modules, or one of another version");
    if (cache_get64(header + 24) != size || r->count > ARCHIVE_MAX_MODULES)
        return damaged(e, "the archive is cut off, or something stands behind it");
    return 0;
}

static ssize_t read_fd(void *context, void *into, size_t size, uint64_t at)
{
    return pread(*(int *)context, into, size, (off_t)at);
}

int archive_open_fd(struct archive_reader *r, int *fd, struct error *e)
{
    struct stat st;

    *r = (struct archive_reader){0};
    if (fstat(*fd, &st) < 0 || !S_ISREG(st.st_mode))
        return error_at(e, ERROR_INVALID_FD, "", "fd", "must be a regular file or a memfd");
    return archive_open(r, read_fd, fd, (uint64_t)st.st_size, e);
}

static int fetch_record(struct archive_reader *r, size_t *ret_payload, struct error *e)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t payload;
    size_t size;

    if (fetch(r, length, sizeof(length), e) < 0)
        return -1;
    payload = cache_get64(length);
    if (payload > CACHE_PAYLOAD_MAX || payload > r->size - r->at)
        return damaged(e, "a module in the archive is too long");
    size = LENGTH_BYTES + (size_t)payload + SUM_BYTES;
    if (size > r->capacity) {
        unsigned char *record = realloc(r->record, size);

        if (!record)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a module of %zu bytes", size);
        r->record = record;
        r->capacity = size;
    }
    memcpy(r->record, length, sizeof(length));
    *ret_payload = (size_t)payload;
    return fetch(r, r->record + LENGTH_BYTES, size - LENGTH_BYTES, e);
}

int archive_next(struct archive_reader *r, struct compiled **ret_compiled, struct error *e)
{
    static const unsigned char nobody[KEY_BYTES];
    unsigned char sum[SUM_BYTES];
    struct compiled *compiled;
    size_t payload = 0;

    if (r->seen == r->count)
        return r->at == r->size ? 0 : damaged(e, "something stands behind the archive's last module");
    if (fetch_record(r, &payload, e) < 0)
        return -1;
    crypto_generichash(sum, sizeof(sum), r->record, LENGTH_BYTES + payload, NULL, 0);
    if (memcmp(sum, r->record + LENGTH_BYTES + payload, sizeof(sum)) != 0)
        return damaged(e, "the archive is damaged");
    if (compiled_parse(r->record + LENGTH_BYTES, payload, &compiled, e) < 0)
        return error_prefix(e, "fd: ");
    if (!memcmp(compiled->key, nobody, sizeof(nobody))) {
        compiled_unref(compiled);
        return damaged(e, "a module in the archive has no key");
    }
    if (compiled_verify(compiled, e) < 0) {
        compiled_unref(compiled);
        return error_prefix(e, "fd: ");
    }
    r->seen++;
    *ret_compiled = compiled;
    return 1;
}

void archive_reader_free(struct archive_reader *r)
{
    free(r->record);
    r->record = NULL;
}
