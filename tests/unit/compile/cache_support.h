/* What the tests of options, keys, caches and the service share: made-up modules, directories, a made-up compiler. */
#ifndef TESTS_UNIT_COMPILE_CACHE_SUPPORT_H
#define TESTS_UNIT_COMPILE_CACHE_SUPPORT_H

#include <stdbool.h>

#include "compile/compiled.h"
#include "compile/compiler.h"
#include "compile/options.h"
#include "tests/support/folder.h"
#include "tests/support/unit.h"

/* A module named after `seed`, whose image has `image_size` bytes. Its content is made up: compiled_verify() of these
 * tests refuses only a module whose image begins with "bad". */
struct compiled *module_new(unsigned seed, size_t image_size);
void module_key(unsigned seed, unsigned char ret_key[KEY_BYTES]);
void assert_same_module(const struct compiled *a, const struct compiled *b);

const char *path_of_module(const char *directory, unsigned seed);
/* Names in it but "secret", ".", "..". */
unsigned directory_count(const char *directory);

unsigned char *file_read(const char *path, size_t *ret_size);
void file_write(const char *path, const void *bytes, size_t size);
/* So many seconds ago. */
void file_used(const char *path, long seconds);

struct cache_disk;

/* A cache in that directory, until the test ends; a module of so many bytes in it; whether it has that module, as it
 * was. */
struct cache_disk *disk_opened(const char *directory, uint64_t limit);
void disk_store(struct cache_disk *d, unsigned seed, size_t size);
bool disk_has(struct cache_disk *d, unsigned seed, size_t size);

/* All that is written to stderr from begin to end counts as log; end returns how many lines hold `event`. */
void log_begin(void);
unsigned log_end(const char *event);

#endif
