/* Binaries for sources, from memory, from disk, from the remote cache, or from the compiler. A source is compiled once,
 * however many requests for it come at the same time.
 *
 * Owns the compiler, the cache in memory, the cache on disk and the connection to the remote cache. Thread: the loop's;
 * no function blocks. Blocking work (reading, writing, hashing of whole archives) runs on the pool. */
#ifndef KOPS_COMPILE_SERVICE_H
#define KOPS_COMPILE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "compile/compiled.h"
#include "compile/compiler.h"
#include "compile/options.h"
#include "compile/signed.h"
#include "remote/remote.h"
#include "util/error.h"

struct code_service;
struct code_request;

enum { CODE_MAX_FILES = OPTIONS_MAX_FILES, CODE_MAX_OPTIONS = OPTIONS_MAX, CODE_KEY_HEX = KEY_HEX };

/* Configuration of the remote cache. Texts are copied. */
struct code_remote_config {
    struct remote_config server; /* NULL url: no remote cache */
    struct signed_trust trust;   /* modules with these signatures are taken */
    bool publishes;              /* modules that were compiled here are signed and put there */
    struct signing_key key;      /* a publisher's */
    unsigned wait_ms;            /* longest wait of a compile for the cache's answer; then both race */
};

/* Texts are copied. */
struct code_service_config {
    struct compiler_config compiler;
    const char *directory; /* the cache on disk, made when it is missing; NULL: none */
    uint64_t disk_bytes;   /* all files there; 0: no cache on disk */
    uint64_t memory_bytes; /* most bytes of binaries that no client holds */
    uint64_t source_bytes; /* most bytes of a source with its files */
    struct code_remote_config remote;
};

/* Opens the directory, which blocks. A directory that cannot be used is a warning in the log, and the service works
 * without a cache on disk. NULL: failed. */
struct code_service *code_service_new(uv_loop_t *loop, const struct code_service_config *config, struct error *e);

/* Changes the limit of source bytes, for later requests. */
void code_service_limit_source(struct code_service *service, uint64_t source_bytes);

/* Changes to another remote cache, or none, or to other keys. An unchanged server stays in use. An error is a line in
 * the log. */
void code_service_use_remote(struct code_service *service, const struct code_remote_config *remote);

/* Drops the requests and tasks without calling their done(), ends the compiler, waits for the pool, frees the service
 * and calls closed(). */
void code_service_close(struct code_service *service, void (*closed)(void *context), void *context);

/* Returns the compiler, for its name and whether it is usable. */
struct compiler *code_service_compiler(struct code_service *service);

enum code_origin { CODE_COMPILED, CODE_MEMORY, CODE_DISK, CODE_REMOTE };

/* "no", "memory", "disk", "remote": the wire's `cached`. */
const char *code_origin_name(enum code_origin origin);

/* Called with the result. `compiled` is a reference for the callee, with its key set; NULL: failed, `e` is the reason
 * and `failure` (may be NULL) the compiler's messages. Both are valid during the call only. */
typedef void code_done(void *context, struct compiled *compiled, enum code_origin origin, const struct error *e,
                       const struct compile_failure *failure);

/* Checks the input, its options and entries (options.h), and copies them. When more requests wait than are compiled at
 * one time, users take turns, then the connections of each (service_queue.c).
 *
 * When the binary is in memory, done() is called before this returns, with *ret_request set to NULL before. Otherwise
 * *ret_request is set, and done() is called later, once, unless the request is cancelled. Returns -1 with `e` for an
 * input that is refused: done() is not called then. */
int code_get(struct code_service *service, const struct compile_input *input, code_done *done, void *context,
             struct code_request **ret_request, struct error *e);

/* Cancels a request; done() is not called. A compile without other requests is stopped. Others may then begin, or fail
 * where memory is short: their done() is called during this call. */
void code_request_cancel(struct code_request *request);

struct code_counters {
    uint64_t compiles;      /* begun */
    uint64_t memory_hits;   /* requests answered from memory */
    uint64_t disk_hits;     /* files read; one answers all its requests */
    uint64_t failures;      /* compiles that failed for any reason */
    uint64_t joins;         /* requests that joined another's */
    uint64_t disk_rejected; /* files that were damaged or not ours */
    uint64_t disk_failures; /* files that could not be written */
    uint64_t evictions;     /* files removed to make room */
};

/* Counts of the remote cache. */
struct code_remote_counters {
    uint64_t hits;     /* modules that came from there and were used */
    uint64_t misses;   /* modules that the cache did not have */
    uint64_t late;     /* questions that the compiler answered first */
    uint64_t failures; /* questions without an answer */
    uint64_t rejected; /* answers with another module, or without a trusted signature */
    uint64_t skipped;  /* questions that were not asked: the cache rests, or there were too many */
    uint64_t uploads;  /* modules that the cache took */
    uint64_t upload_failures;
    uint64_t upload_drops; /* uploads that were not tried: the cache rests, or there were too many */
};

/* Reads the remote cache's counts and state. False: there is none. */
bool code_service_remote(const struct code_service *service, struct code_remote_counters *ret_counters,
                         struct remote_report *ret_report);

struct code_counters code_service_counters(const struct code_service *service);

/* ---- for administrators: the server checks the caller's rights ---- */

struct code_listed {
    char key[CODE_KEY_HEX + 1], arch[COMPILED_ARCH_SIZE], compiler[COMPILED_COMPILER_SIZE];
    unsigned n_names;
    char **names;   /* the entries, as asked for */
    uint64_t bytes; /* on disk, or else in memory */
    double age_s;   /* time since the last use */
    bool loaded;    /* in memory */
    bool on_disk;
    const char *from; /* the module's origin: "compiler", "import", "remote" */
};

/* Each action fills its own part. */
struct code_result {
    struct code_listed *listed; /* list: last used first */
    unsigned n_listed;
    uint64_t bytes, limit;      /* list: of the cache on disk, without one of that in memory. export: of the archive */
    uint64_t removed;           /* clear: modules, each counted once, in memory and on disk */
    uint64_t imported, skipped; /* import: modules; skipped: the cache had them */
    int fd;                     /* export: a sealed memfd, at its start; the callee takes it by setting -1 */
};

/* Called with the result; NULL: failed, `e` says why. The result is valid during the call only. */
typedef void code_task_done(void *context, struct code_result *result, const struct error *e);

/* Administrators' actions. `key` (64 hex digits; NULL: all) picks one module; a missing one is an error
 * (ERROR_INVALID_ARGUMENT with key "key"). done() is called later, once, unless the service ends before. Return -1 with
 * `e` when nothing was begun. */
int code_cache_list(struct code_service *service, code_task_done *done, void *context, struct error *e);
int code_cache_clear(struct code_service *service, const char *key, code_task_done *done, void *context,
                     struct error *e);
int code_cache_export(struct code_service *service, const char *key, code_task_done *done, void *context,
                      struct error *e);

/* Reads an archive from `fd` (a memfd or a regular file, from its start; taken in every case, also on failure). All of
 * it is checked before the first module is imported. Whether a module belongs to its key cannot be checked: an import
 * trusts the archive's maker. Without a cache on disk the modules go to memory, as far as they fit. */
int code_cache_import(struct code_service *service, int fd, code_task_done *done, void *context, struct error *e);

#endif
