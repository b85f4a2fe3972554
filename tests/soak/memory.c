#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD = 0xa5 };

void memory_drop(struct memory *m)
{
    for (unsigned i = 0; i < MEMORY_BUFFERS; i++) {
        m->all[i].buffer = kops_buffer_release(m->all[i].buffer);
        m->all[i].used = 0;
    }
    m->n_taken = 0;
}

void memory_drop_one(struct memory *m)
{
    unsigned i = random_below(m->random, MEMORY_BUFFERS);

    m->all[i].buffer = kops_buffer_release(m->all[i].buffer);
    m->all[i].used = 0;
}

static enum kops_code register_own(struct memory *m, kops_buffer **ret_buffer, struct kops_error *e)
{
    int fd = memfd_create("soak", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    enum kops_code r;

    if (fd < 0 || ftruncate(fd, MEMORY_BYTES) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        perror("memfd");
        abort();
    }
    r = kops_buffer_register_memfd(m->client, fd, MEMORY_BYTES, KOPS_ACCESS_RW, ret_buffer, e);
    close(fd);
    return r;
}

enum kops_code memory_made(kops_client *client, size_t bytes, kops_buffer **ret_buffer, struct kops_error *e)
{
    const enum kops_code r = kops_buffer_alloc(client, bytes, NULL, ret_buffer, e);

    if (r || kops_buffer_data(*ret_buffer))
        return r;
    *ret_buffer = kops_buffer_release(*ret_buffer);
    return kops_buffer_alloc_shared(client, bytes, ret_buffer, e);
}

static enum kops_code make(struct memory *m, unsigned i, struct kops_error *e)
{
    kops_buffer **buffer = &m->all[i].buffer;
    enum kops_code r;

    switch (random_below(m->random, 3)) {
    case 0:
        r = memory_made(m->client, MEMORY_BYTES, buffer, e);
        break;
    case 1:
        r = kops_buffer_alloc_shared(m->client, MEMORY_BYTES, buffer, e);
        break;
    default:
        r = register_own(m, buffer, e);
    }
    if (!r)
        memset(kops_buffer_data(*buffer), GUARD, MEMORY_BYTES);
    return r;
}

enum kops_code memory_take(struct memory *m, size_t bytes, kops_buffer **ret_buffer, uint64_t *ret_offset,
                           struct kops_error *e)
{
    const size_t room = (bytes + MEMORY_GUARD - 1) / MEMORY_GUARD * MEMORY_GUARD;
    const unsigned first = random_below(m->random, MEMORY_BUFFERS);

    *ret_buffer = NULL;
    for (unsigned k = 0; k < MEMORY_BUFFERS && m->n_taken < MEMORY_TAKEN; k++) {
        const unsigned i = (first + k) % MEMORY_BUFFERS;
        size_t *used = &m->all[i].used;

        if (*used + room + 2 * MEMORY_GUARD > MEMORY_BYTES)
            continue;
        if (!m->all[i].buffer) {
            enum kops_code r = make(m, i, e);

            if (r)
                return r;
        }
        *ret_buffer = m->all[i].buffer;
        *ret_offset = *used + MEMORY_GUARD;
        *used += MEMORY_GUARD + room;
        m->taken[m->n_taken].buffer = i;
        m->taken[m->n_taken].offset = *ret_offset;
        m->taken[m->n_taken++].bytes = bytes;
        return KOPS_OK;
    }
    return KOPS_OK;
}

static bool untouched(const unsigned char *from, const unsigned char *to)
{
    while (from < to)
        if (*from++ != GUARD)
            return false;
    return true;
}

bool memory_reuse(struct memory *m)
{
    bool whole = true;

    for (unsigned i = 0; i < m->n_taken; i++) {
        const unsigned char *data = kops_buffer_data(m->all[m->taken[i].buffer].buffer);
        const size_t begin = m->taken[i].offset, end = begin + m->taken[i].bytes;
        const size_t behind = (end + MEMORY_GUARD - 1) / MEMORY_GUARD * MEMORY_GUARD + MEMORY_GUARD;

        whole &= untouched(data + begin - MEMORY_GUARD, data + begin) && untouched(data + end, data + behind);
    }
    for (unsigned i = 0; i < MEMORY_BUFFERS; i++) {
        if (m->all[i].buffer)
            memset(kops_buffer_data(m->all[i].buffer), GUARD, m->all[i].used);
        m->all[i].used = 0;
    }
    m->n_taken = 0;
    return whole;
}
