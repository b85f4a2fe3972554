/* One run of NVRTC over a source.
 *
 * Thread: the process's only one. */
#ifndef KOPS_COMPILE_HELPER_ATTEMPT_H
#define KOPS_COMPILE_HELPER_ATTEMPT_H

#include <stdbool.h>

#include "compile/helper_compile.h"

struct hostcode_text;

struct attempt {
    void *program;
    int result; /* enum nvrtc_result */
    char *log;  /* owned; NULL without memory */
    size_t log_length;
    unsigned char *image; /* owned */
    size_t image_size;
    double us;
};

/* Compiles. `resolve`: asks for the names of the entries, which makes a source without one of them fail. */
void attempt_run(struct attempt *a, const struct helper_toolkit *toolkit, const struct compile_input *input,
                 bool resolve);
void attempt_free(struct attempt *a, const struct helper_toolkit *toolkit);

/* An entry's name in the binary, NULL when there is none. Valid as long as the attempt. */
const char *attempt_lowered(const struct attempt *a, const struct helper_toolkit *toolkit, const char *entry);

/* A source as nvcc would take it, for a compiler of device code alone: without host code, and with the headers that
 * nvcc includes by itself. */
struct adapted {
    struct compile_input input;
    struct hostcode_text *texts; /* of the source and the files */
    struct compile_file *files;
    const char **options;
    unsigned char **faults; /* of each text */
    bool changed;           /* the texts, too */
};

/* Returns -1 where memory is short or the texts are too large for it. */
int adapted_make(struct adapted *a, const struct compile_input *input);

/* Blanks also the host's declarations that the log of an attempt finds fault with. Returns whether there were any. */
bool adapted_drop_faulty(struct adapted *a, const struct compile_input *input, const char *log);

/* Whether two logs have an error in common. */
bool attempts_share_error(const struct attempt *a, const struct attempt *b);
void adapted_free(struct adapted *a);

#endif
