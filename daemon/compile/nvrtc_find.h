/* Where NVRTC and the toolkit's headers are, and which ones they are, without loading anything.
 *
 * Owns its texts. Thread: any; it reads directories, so not for the loop once it runs. */
#ifndef KOPS_COMPILE_NVRTC_FIND_H
#define KOPS_COMPILE_NVRTC_FIND_H

#include <limits.h>

#include "compile/helper_compile.h"

struct nvrtc_place {
    char path[PATH_MAX];               /* of the library; "" when there is none */
    char name[COMPILED_COMPILER_SIZE]; /* "NVRTC 13.0" */
    char identity[192];                /* differs when library or headers differ */
    char includes[HELPER_MAX_INCLUDES][PATH_MAX];
    unsigned n_includes;
    unsigned n_trees; /* the last of them are no toolkit's, but of kernels.include_extra, and */
    uint64_t stamp;   /* theirs: see include_tree_stamp() */
};

/* `nvrtc` and `include` as in compiler_config. Fills in an empty place and says why when there is no library. */
int nvrtc_find(const char *nvrtc, const char *include, struct nvrtc_place *ret_place, struct error *e);

/* Adds the trees of `extra`, folders with colons between them, behind the toolkit's headers, and to the identity.
 * Error: invalid_argument, see include_tree_check(). */
int nvrtc_add_trees(const char *extra, struct nvrtc_place *place, struct error *e);

#endif
