/* Compiled modules by key, in memory and on disk. */
#ifndef KOPS_COMPILE_CACHE_H
#define KOPS_COMPILE_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "compile/compiled.h"
#include "util/buffer.h"
#include "util/error.h"
#include "util/list.h"

/* ---- in memory: the least recently used are dropped first. Owns a reference to each module. Thread: the loop's. ----
 */

struct cache_memory;

struct cache_item {
    struct list used;          /* in the order of use */
    const unsigned char *key;  /* the module's */
    struct compiled *compiled; /* owned */
    size_t bytes;
    uint64_t used_ns, touched_ns; /* last use; when its file was last told so (the owner keeps that) */
};

struct cache_memory *cache_memory_new(uint64_t limit);
/* NULL is allowed. Returns NULL. */
struct cache_memory *cache_memory_free(struct cache_memory *m);

/* Returns the item, which becomes the one used last, or NULL. Valid until the next put or remove. */
struct cache_item *cache_memory_get(struct cache_memory *m, const unsigned char key[KEY_BYTES], uint64_t now_ns);

/* Takes a reference and drops others until all fit; replaces a binary of the same key. A binary above the limit is not
 * kept. */
void cache_memory_put(struct cache_memory *m, struct compiled *compiled, uint64_t now_ns);

bool cache_memory_remove(struct cache_memory *m, const unsigned char key[KEY_BYTES]);

uint64_t cache_memory_bytes(const struct cache_memory *m);
unsigned cache_memory_count(const struct cache_memory *m);

/* Returns the least recently used item after `item` (NULL: the first of all); NULL after the last. */
struct cache_item *cache_memory_next(struct cache_memory *m, struct cache_item *item);

/* Binaries on disk: a file for each module in a directory of the daemon's own. Above a number of bytes, the least
 * recently used files are removed.
 *
 * A file counts only when its keyed hash is right: a damaged or foreign file is removed with a line in the log and
 * counts as absent. Files are written under another name and renamed, so a reader never sees half of one. They are not
 * flushed: after a power cut the hash tells which files are whole, and the others are compiled again.
 *
 * A file is a magic number, which also tells the module's origin, the length of the rest, compiled_serialize()'s bytes,
 * and a BLAKE2b-256 of all before it, keyed with the directory's own secret: only readers of the secret can make files
 * that count as binaries.
 *
 * Several daemons may share a directory. Thread: any, also several at once; every function but cache_disk_counters()
 * blocks. */

enum {
    CACHE_SECRET_BYTES = 32,
    CACHE_MAC_BYTES = 32,
    CACHE_HEADER_BYTES = 16,
    CACHE_PAYLOAD_MAX = COMPILED_MAX_IMAGE + (2 << 20), /* a binary, a log, and 64 entries with all their parameters */
    CACHE_FILE_MAX = CACHE_HEADER_BYTES + CACHE_PAYLOAD_MAX + CACHE_MAC_BYTES,
};

/* ---- a file; keeps no state, and does not block ---- */

/* Reads bytes from anywhere: refuses files that were not made with this secret for this key. The content is read only
 * when its hash is right. */
int cache_file_open(const void *bytes, size_t size, const unsigned char secret[CACHE_SECRET_BYTES],
                    const unsigned char key[KEY_BYTES], struct compiled **ret_compiled, struct error *e);

/* Little-endian, for this form and that of archives. */
void cache_put64(unsigned char into[8], uint64_t value);
uint64_t cache_get64(const unsigned char from[8]);

/* ---- the directory ---- */

struct cache_disk;

/* Opens the directory of a cache. Makes it (mode 0700) when it is missing, with those above it. Refuses one that
 * another user owns or that others can write; as root also one that folders or links of other users lead to. The
 * descriptor is the caller's. */
int cache_directory_open(const char *path, struct error *e);

int cache_disk_open(const char *directory, uint64_t limit, struct cache_disk **ret_disk, struct error *e);
/* NULL is allowed. Returns NULL. */
struct cache_disk *cache_disk_close(struct cache_disk *d);

uint64_t cache_disk_limit(const struct cache_disk *d);

/* Returns a reference, or NULL: there is no file, or no longer. `use`: counts as a use, for which the file stays
 * longer. */
struct compiled *cache_disk_read(struct cache_disk *d, const unsigned char key[KEY_BYTES], bool use);

/* Notes a use of a file that was not read, since memory had it. */
void cache_disk_touch(struct cache_disk *d, const unsigned char key[KEY_BYTES]);

/* Writes the module's file and removes others until all fit. A module larger than the limit is not kept, which is no
 * failure. After a failure (a full disk, …) nothing is left behind; the log gets at most a line a minute. */
int cache_disk_write(struct cache_disk *d, const struct compiled *compiled, struct error *e);

bool cache_disk_remove(struct cache_disk *d, const unsigned char key[KEY_BYTES]);

struct cache_disk_file {
    unsigned char key[KEY_BYTES];
    uint64_t bytes;
    struct timespec used; /* by the clock of the day */
};

/* Lists the files by name, unchecked, in no order. The caller frees *ret_files. */
int cache_disk_list(struct cache_disk *d, struct cache_disk_file **ret_files, unsigned *ret_n, struct error *e);

struct cache_disk_counters {
    uint64_t rejected, failures, evictions;
};
struct cache_disk_counters cache_disk_counters(const struct cache_disk *d);

/* ---- reading and writing, also for others ---- */

int cache_write_all(int fd, const void *bytes, size_t size);
/* Reads a whole file of that size into memory of its own, since a mapped file could shrink under its reader. */
int cache_slurp(int fd, size_t size, unsigned char **ret_bytes, size_t *ret_size, struct error *e);
/* Returns the number of bytes read, fewer only at the end of the file; -1 with errno. */
ssize_t cache_read_all(int fd, void *bytes, size_t size);

#endif
