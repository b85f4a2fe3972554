/* A set of open files, in which any descriptor of a file finds its entry. The driver's exports have no inode of their
 * own, so the kernel is asked for the order of two descriptors' files (kcmp); a search takes about log2(n) questions.
 * Descriptors stay the caller's and must be open while they are in the set. Thread: the caller's only. */
#ifndef KOPS_BACKEND_FILE_SET_H
#define KOPS_BACKEND_FILE_SET_H

#include <stdint.h>

struct file_set {
    struct file_entry {
        int fd;
        void *value;
    } * entries; /* sorted by the kernel's order */
    unsigned n, capacity;
    uint64_t comparisons; /* the number so far */
};

/* Makes room for one more entry; -1: no memory. */
int file_set_reserve(struct file_set *set);
/* Only after file_set_reserve(). Where a file has two entries, either may be found. */
void file_set_add(struct file_set *set, int fd, void *value);
/* The value of that file; NULL: it is not in the set, or the kernel cannot compare. */
void *file_set_find(struct file_set *set, int fd);
/* Removes the entry with that value. `fd` is the descriptor that it was added with. */
void file_set_remove(struct file_set *set, int fd, const void *value);
void file_set_free(struct file_set *set);

#endif
