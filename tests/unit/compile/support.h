/* What the tests of options, keys, caches and the service share: made-up modules, directories, a service with a made-up
 * compiler, and who asks it. */
#ifndef TESTS_UNIT_COMPILE_SUPPORT_H
#define TESTS_UNIT_COMPILE_SUPPORT_H

#include "compile/cache.h"
#include "compile/options.h"
#include "compile/service.h"
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

void file_write(const char *path, const void *bytes, size_t size);
/* So many seconds ago. */
void file_used(const char *path, long seconds);

/* A cache in that directory, until the test ends; a module of so many bytes in it; whether it has that module, as it
 * was. */
struct cache_disk *disk_opened(const char *directory, uint64_t limit);
void disk_store(struct cache_disk *d, unsigned seed, size_t size);
bool disk_has(struct cache_disk *d, unsigned seed, size_t size);

/* All that is written to stderr from begin to end counts as log; end returns how many lines hold `event`. */
void log_begin(void);
unsigned log_end(const char *event);

/* ---- a compiler that does nothing by itself ---- */

/* The test sees what was asked for and says what comes of it. All of compiler.h is here: no library and no helper
 * process. */
struct fake_compile {
    char name[64], source[64], options[256], entries[256]; /* options and entries with blanks between */
};

extern struct fake_compiler {
    const char *identity;
    unsigned begun; /* compiles, and those that went on */
    unsigned cancelled;
    struct fake_compile last;            /* begun */
    bool short_of_memory, may_not_pause; /* no compile begins, none can be paused */
} fake_compiler;

unsigned fake_waiting(void);                   /* that are neither finished, cancelled nor paused */
unsigned fake_paused(const char **ret_source); /* that are paused; the source of the oldest */

/* Ends the oldest one that waits, or one that is paused: with `compiled` (takes the reference), or with a failure of
 * that reason. */
void fake_succeed(struct compiled *compiled, bool paused);
void fake_fail(const char *reason, const char *log);

/* ---- a service ---- */

/* The loop of all services; of a group of tests. */
extern uv_loop_t loop;
int loop_open(void **state);
int loop_close(void **state);

/* Until the test ends; what the compiler has counted is forgotten. */
struct code_service *service_open_of(const struct code_service_config *config);
/* A service with that directory (NULL: none), and 1 MiB on disk and in memory. */
struct code_service *service_open(const char *directory);
struct code_service *service_open_with(const char *directory, uint64_t disk_bytes, uint64_t memory_bytes);

struct asker {
    struct code_service *service;
    struct code_request *request;
    unsigned answers;
    struct compiled *compiled; /* of the answer, until the test ends */
    enum code_origin origin;
    enum error_code code;
    char message[ERROR_MESSAGE_MAX], reason[16], log[64];
    void (*then)(struct asker *asker); /* NULL: nothing; called with the answer */
    void *context;
};

struct compile_input input_of(const char *source);
/* Expects that it is taken. */
void ask(struct asker *asker, struct code_service *s, const char *source);
void ask_from(struct asker *asker, struct code_service *s, uint64_t user, uint64_t connection, const char *source);

/* Runs the loop until that many compiles wait, or the asker has so many answers, or nothing runs on the pool. */
void until_compiling(unsigned n);
void until_answered(struct asker *asker);
void until_idle(void);

/* Asks for `source`, compiles it to module `seed` when it must be, and gives back where it came from. */
enum code_origin fetch(struct code_service *s, const char *source, unsigned seed);

#endif
