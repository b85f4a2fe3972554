/* The table of choices: open addressing; a slot's number is odd while it is written. */
#include "core/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct slot {
    atomic_uint number; /* 0: empty; odd: it is being written */
    uint32_t written;   /* the table's generation at the time: tells which choice is the oldest */
    struct tuning_key key;
    _Alignas(uint64_t) struct tuning_choice choice;
};

struct tuning_table {
    atomic_uint generation;
    uint32_t size;
    struct slot slots[TUNING_SLOTS];
};

uint64_t tuning_hash(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    uint64_t h = size, word;

    for (; size > 0; at += sizeof(word), size -= size < sizeof(word) ? size : sizeof(word)) {
        word = 0;
        memcpy(&word, at, size < sizeof(word) ? size : sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15U;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

/* Copies words that another thread or process may be writing or reading at the same time: whole words, in no order. */
static void copy_words(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size / sizeof(uint64_t); i++)
        __atomic_store_n((uint64_t *)to + i, __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
}

_Static_assert(sizeof(struct tuning_key) % sizeof(uint64_t) == 0, "copied as words");
_Static_assert(sizeof(struct tuning_choice) % sizeof(uint64_t) == 0, "copied as words");

/* ---- its memory ---- */

int tuning_table_new(struct tuning_table **ret_table, int *ret_fd, struct error *e)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    const int fd = memfd_create("kops-tuning", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct tuning_table *t;

    if (fd < 0 || ftruncate(fd, sizeof(*t)) < 0)
        goto fail;
    t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (t == MAP_FAILED)
        goto fail;
    t->size = sizeof(*t);
    if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
        munmap(t, sizeof(*t));
        goto fail;
    }
    *ret_table = t;
    *ret_fd = fd;
    return 0;

fail:
    error_set(e, ERROR_OUT_OF_MEMORY, "the memory for tuned choices: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

int tuning_table_map(int fd, const struct tuning_table **ret_table, struct error *e)
{
    const struct tuning_table *t;
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_size != (off_t)sizeof(*t))
        return error_set(e, ERROR_INTERNAL, "the memory of tuned choices has another size");
    t = mmap(NULL, sizeof(*t), PROT_READ, MAP_SHARED, fd, 0);
    if (t == MAP_FAILED)
        return error_set(e, ERROR_OUT_OF_MEMORY, "the memory of tuned choices: %s", strerror(errno));
    *ret_table = t;
    return 0;
}

void tuning_table_free(struct tuning_table *t)
{
    if (t)
        munmap(t, sizeof(*t));
}

/* ---- its contents ---- */

static unsigned first_place(const struct tuning_key *key)
{
    return (unsigned)(tuning_hash(key, sizeof(*key)) % TUNING_SLOTS);
}

/* Returns the problem's slot, or an empty one, or the one that was written first. */
static struct slot *place(struct tuning_table *t, const struct tuning_key *key)
{
    const unsigned first = first_place(key);
    struct slot *oldest = &t->slots[first];

    for (unsigned i = 0; i < TUNING_PROBES; i++) {
        struct slot *s = &t->slots[(first + i) % TUNING_SLOTS];

        if (!atomic_load_explicit(&s->number, memory_order_relaxed) || !memcmp(&s->key, key, sizeof(*key)))
            return s;
        if (s->written < oldest->written)
            oldest = s;
    }
    return oldest;
}

void tuning_table_put(struct tuning_table *t, const struct tuning_key *key, const struct tuning_choice *choice)
{
    struct slot *s = place(t, key);
    const unsigned number = atomic_load_explicit(&s->number, memory_order_relaxed);

    atomic_store_explicit(&s->number, number + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    copy_words(&s->key, key, sizeof(*key));
    copy_words(&s->choice, choice, sizeof(*choice));
    s->written = atomic_load_explicit(&t->generation, memory_order_relaxed);
    atomic_store_explicit(&s->number, number + 2, memory_order_release);
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
}

void tuning_table_clear(struct tuning_table *t)
{
    static const struct tuning_key none;

    for (unsigned i = 0; i < TUNING_SLOTS; i++) {
        const unsigned number = atomic_load_explicit(&t->slots[i].number, memory_order_relaxed);

        if (!number)
            continue;
        /* The slot belongs to no problem from now on. A slot behind it may be in use, so it does not become empty. */
        atomic_store_explicit(&t->slots[i].number, number + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        copy_words(&t->slots[i].key, &none, sizeof(none));
        t->slots[i].written = 0;
        atomic_store_explicit(&t->slots[i].number, number + 2, memory_order_release);
    }
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
}

/* Reads a slot as it was at one time. False: it is empty, or being written. */
static bool read_slot(const struct slot *s, struct slot *ret, bool *ret_empty)
{
    const unsigned number = atomic_load_explicit(&s->number, memory_order_acquire);

    *ret_empty = number == 0;
    if (!number || number & 1)
        return false;
    copy_words(&ret->key, &s->key, sizeof(ret->key));
    copy_words(&ret->choice, &s->choice, sizeof(ret->choice));
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&s->number, memory_order_relaxed) == number;
}

bool tuning_table_find(const struct tuning_table *t, const struct tuning_key *key, struct tuning_choice *ret_choice)
{
    const unsigned first = t ? first_place(key) : 0;
    bool empty = false;
    struct slot read;

    for (unsigned i = 0; t && i < TUNING_PROBES && !empty; i++) {
        if (!read_slot(&t->slots[(first + i) % TUNING_SLOTS], &read, &empty) ||
            memcmp(&read.key, key, sizeof(*key)) != 0)
            continue;
        *ret_choice = read.choice;
        ret_choice->variant[sizeof(ret_choice->variant) - 1] = '\0';
        return true;
    }
    return false;
}

uint32_t tuning_table_generation(const struct tuning_table *t)
{
    return t ? atomic_load_explicit(&t->generation, memory_order_acquire) : 0;
}

/* ---- one tuning ---- */

uint32_t tuning_tried(const struct tuning_result *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n; i++)
        n += r->candidates[i].tried != 0;
    return n;
}
