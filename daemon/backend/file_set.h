/* Open files that are found by any descriptor of them. What the driver exports has no inode of its own, so the kernel
 * is asked which of two descriptors' files comes first (kcmp): finding one takes about log2(n) questions. Descriptors
 * stay the caller's and must be open while they are in the set. Thread: the caller's only. */
#ifndef KOPS_BACKEND_FILE_SET_H
#define KOPS_BACKEND_FILE_SET_H

#include <stdint.h>

struct file_set {
    struct file_entry {
        int fd;
        void *value;
    } * entries; /* in the kernel's order */
    unsigned n, capacity;
    uint64_t comparisons; /* so far */
};

/* Room for one more; -1: there is no memory. */
int file_set_reserve(struct file_set *set);
/* After file_set_reserve(). Of a file that is there already either entry is found. */
void file_set_add(struct file_set *set, int fd, void *value);
/* The value of that file; NULL: it is not there, or this kernel does not compare. */
void *file_set_find(struct file_set *set, int fd);
/* The entry of that value, with the descriptor that it was added with. */
void file_set_remove(struct file_set *set, int fd, const void *value);
void file_set_free(struct file_set *set);

#endif
