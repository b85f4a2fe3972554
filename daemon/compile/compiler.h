/* Compiles CUDA C++ with NVRTC in sandboxed helper processes, several at a time.
 *
 * NVRTC reads every file that a source includes, takes up to 100 MB and may crash or never return, so the daemon never
 * loads it: see helper.h for the processes and their rights. Each source gets a process of its own, kept
 * warm in advance; a process that takes too long or is no longer wanted is killed.
 *
 * Thread: the loop's; no function blocks. */
#ifndef KOPS_COMPILE_COMPILER_H
#define KOPS_COMPILE_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "compile/compiled.h"
#include "util/error.h"

struct compiler;
struct compile_job;

struct compile_file {
    const char *name; /* the name in the source's #include */
    const char *text;
    size_t length;
};

/* A source to compile. The caller checks the options, which are handed to NVRTC as they are, after the architecture.
 * Checked by the compiler: names and options without zero bytes, COMPILER_MAX_INPUT bytes in all. */
struct compile_input {
    const char *name, *source; /* the file's name in messages, and its text */
    size_t length;
    const struct compile_file *files;
    unsigned n_files;
    const char *const *options;
    unsigned n_options;
    const char *const *entries; /* names of functions, or name expressions */
    unsigned n_entries;         /* 1 … COMPILED_MAX_ENTRIES */
    const char *arch;           /* "sm_90a" */
    uint64_t user, connection;  /* any numbers: users take turns, and connections of a user */
};

enum { COMPILER_MAX_INPUT = 64 << 20, COMPILER_MAX_FILES = 1024, COMPILER_MAX_OPTIONS = 256 };

enum compiler_sandbox {
    COMPILER_SANDBOX_REQUIRED,    /* Landlock, seccomp, and for root another user, or no compile at all */
    COMPILER_SANDBOX_BEST_EFFORT, /* the parts that the kernel has */
    COMPILER_SANDBOX_OFF,
};

/* Texts are copied. */
struct compiler_config {
    const char *nvrtc;         /* path of libnvrtc.so; NULL: searched; "none": there is no compiler */
    const char *include;       /* the toolkit's headers; NULL: beside NVRTC */
    const char *include_extra; /* further folders of headers, with colons between them; NULL: none */
    const char *user;          /* compiles run as this user where the daemon is root; NULL: `nobody` */
    const char *binary;        /* the program that takes --compile-helper; NULL: this one */
    enum compiler_sandbox sandbox;
    unsigned helpers;    /* compiles at one time, ≥ 1 */
    unsigned memory_mib; /* address space that one compile may add */
    unsigned time_s;     /* for one compile */
    unsigned keep_s;     /* after which unused helpers end; 0: never */
    bool alone;          /* every source gets a helper of its own that is not forked, as where forking is unsafe */
};

/* Reason why a source was not compiled. NULL where the fault is not the source's (then the error says it all). */
struct compile_failure {
    const char *reason; /* "source", "time", "memory", "crash", "entry": a literal */
    const char *log;    /* at most COMPILED_MAX_LOG bytes; zero-terminated */
    size_t log_length;
};

/* Called with the result. `compiled` is a reference for the callee, with `key` zero; NULL: failed, `e` says why. */
typedef void compile_done(void *context, struct compiled *compiled, const struct error *e,
                          const struct compile_failure *failure);

/* Looks for the library, reads the trees of include_extra, and starts no process. NULL: failed; invalid_argument:
 * people other than the administrator could change such a tree. */
struct compiler *compiler_new(uv_loop_t *loop, const struct compiler_config *config, struct error *e);

/* Kills all helpers; calls the jobs' done() with ERROR_CANCELLED, then closed(). Frees the compiler. */
void compiler_close(struct compiler *compiler, void (*closed)(void *context), void *context);

/* Returns "NVRTC 13.0", or "" where there is none: then compiles fail with ERROR_UNSUPPORTED. */
const char *compiler_name(const struct compiler *compiler);

/* Returns a text that changes when the library or the headers are replaced, as compiler_new() found them. */
const char *compiler_identity(const struct compiler *compiler);

/* The directory of the toolkit's headers; NULL: none was found. */
const char *compiler_include(const struct compiler *compiler);

/* The folders of include_extra. */
unsigned compiler_trees(const struct compiler *compiler);
const char *compiler_tree(const struct compiler *compiler, unsigned i);

/* Tells whether a compile can be expected to work: there is a library, this kernel supports the sandbox, and the last
 * start of a helper did not fail. `e` (may be NULL) has the reason. */
bool compiler_usable(const struct compiler *compiler, struct error *e);

/* Compiles a source; copies the input. done() is called later, once, unless the job is cancelled before. NULL: there
 * was no memory for the job, and done() is not called. */
struct compile_job *compiler_compile(struct compiler *compiler, const struct compile_input *input, compile_done *done,
                                     void *context);

/* Pauses a job by stopping its process, which keeps its memory. Until the job is resumed its time stands still, and the
 * process does not count among `helpers`. done() may still be called, with an answer that was there already. False, and
 * nothing done: the daemon may not signal the process. */
bool compile_job_pause(struct compile_job *job);
void compile_job_resume(struct compile_job *job);

/* Kills the job's process; done() is not called. */
void compile_job_cancel(struct compile_job *job);

#endif
