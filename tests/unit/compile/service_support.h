/* A service with a made-up compiler, and who asks it. */
#ifndef TESTS_UNIT_COMPILE_SERVICE_SUPPORT_H
#define TESTS_UNIT_COMPILE_SERVICE_SUPPORT_H

#include "cache_support.h"
#include "compile/service.h"

/* The loop of all services. */
extern uv_loop_t loop;

/* Of that directory (NULL: none) with 1 MiB each on disk and in memory. */
struct code_service *service_open(const char *directory);
struct code_service *service_open_with(const char *directory, uint64_t disk_bytes, uint64_t memory_bytes);
/* Until all of it is gone. */
void service_close(struct code_service *s);

struct asker {
    struct code_service *service;
    struct code_request *request;
    unsigned answers;
    struct compiled *compiled; /* of the answer; the asker's */
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
void asker_clear(struct asker *asker);

/* Runs the loop until that many compiles wait, or the asker has so many answers, or nothing runs on the pool. */
void until_compiling(unsigned n);
void until_answered(struct asker *asker);
void until_idle(void);

/* Asks for `source`, compiles it to module `seed` when it must be, and gives back where it came from. */
enum code_origin fetch(struct code_service *s, const char *source, unsigned seed);

#endif
