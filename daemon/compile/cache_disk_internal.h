/* Shared by the files of the cache on disk. */
#ifndef KOPS_COMPILE_CACHE_DISK_INTERNAL_H
#define KOPS_COMPILE_CACHE_DISK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "compile/cache_disk.h"
#include "compile/cache_file.h"

struct cache_disk {
    int directory; /* owned: all names are relative to it */
    uint64_t limit;
    unsigned char secret[CACHE_SECRET_BYTES];
    pthread_mutex_t lock; /* of the next two, and for one look at the whole directory at a time */
    uint64_t bytes;       /* in files, once `scanned`; at most that: removed files count until the next scan */
    bool scanned;
    atomic_uint_fast64_t rejected, failures, evictions;
    atomic_uint_fast64_t logged_ns; /* when a failure that comes again was last logged; 0: never */
};

enum { CACHE_TEMPORARY_SIZE = 32 };

/* A new file for writing, 0600, under a temporary name; -1 with errno. */
int cache_temporary(int directory, char ret_name[CACHE_TEMPORARY_SIZE]);

int cache_write_all(int fd, const void *bytes, size_t size);
/* The number of bytes read, fewer only at the end of the file; -1 with errno. */
ssize_t cache_read_all(int fd, void *bytes, size_t size);

/* Reads the directory's secret, making it when it is missing; one that others could have read or changed is replaced.
 */
int cache_secret_get(int directory, unsigned char ret_secret[CACHE_SECRET_BYTES], struct error *e);

/* After a file of `bytes` has got its name: removes the least recently used other ones when there is too much. */
void cache_disk_added(struct cache_disk *d, uint64_t bytes, const unsigned char kept[KEY_BYTES]);

#endif
