#include "backend/file_set.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef KCMP_FILE
#define KCMP_FILE 0 /* linux/kcmp.h is not on every system */
#endif

/* The kernel's answers to kcmp(). */
enum { SAME = 0, FIRST_IS_LESS = 1 };

static long compare(struct file_set *set, int a, int b)
{
    set->comparisons++;
    return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b);
}

/* The index of the file's entry, or where it would be inserted. */
static unsigned place(struct file_set *set, int fd, bool *ret_found)
{
    unsigned low = 0, high = set->n;

    *ret_found = false;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const long order = compare(set, fd, set->entries[middle].fd);

        if (order == SAME) {
            *ret_found = true;
            return middle;
        }
        if (order == FIRST_IS_LESS)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int file_set_reserve(struct file_set *set)
{
    const unsigned wanted = set->capacity ? 2 * set->capacity : 64;
    struct file_entry *entries;

    if (set->n < set->capacity)
        return 0;
    entries = realloc(set->entries, wanted * sizeof(*entries));
    if (!entries)
        return -1;
    set->entries = entries;
    set->capacity = wanted;
    return 0;
}

void file_set_add(struct file_set *set, int fd, void *value)
{
    bool found;
    const unsigned at = place(set, fd, &found);

    memmove(&set->entries[at + 1], &set->entries[at], (set->n - at) * sizeof(set->entries[0]));
    set->entries[at] = (struct file_entry){fd, value};
    set->n++;
}

void *file_set_find(struct file_set *set, int fd)
{
    bool found;
    const unsigned at = place(set, fd, &found);

    return found ? set->entries[at].value : NULL;
}

void file_set_remove(struct file_set *set, int fd, const void *value)
{
    bool found;
    unsigned at = place(set, fd, &found);

    /* The entry is another one of the same file, or the kernel cannot compare. */
    if (!found || set->entries[at].value != value)
        for (at = 0; at < set->n && set->entries[at].value != value; at++)
            ;
    if (at == set->n)
        return;
    set->n--;
    memmove(&set->entries[at], &set->entries[at + 1], (set->n - at) * sizeof(set->entries[0]));
}

void file_set_free(struct file_set *set)
{
    free(set->entries);
    *set = (struct file_set){0};
}
