/* A service with a made-up compiler, and who asks it. */
#ifndef TESTS_UNIT_COMPILE_SERVICE_SUPPORT_H
#define TESTS_UNIT_COMPILE_SERVICE_SUPPORT_H

#include "cache_support.h"
#include "compile/service.h"

/* The loop of all services; of a group of tests. */
extern uv_loop_t loop;
int loop_open(void **state);
int loop_close(void **state);

/* Of that directory (NULL: none) with 1 MiB each on disk and in memory, until the test ends. */
struct code_service *service_open(const char *directory);
/* One that the test has made: it ends with the test. */
struct code_service *service_opened(struct code_service *s);
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
