#include "image.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/fail.h"
#include "ops/launch.h"
#include "proto/generated/cuda_ops_layout.h"

enum { SLOTS = 256 /* a power of two, above the number of kernels */ };

/* A function that was found before. */
struct slot {
    const char *symbol;
    cuda_context context;
    struct here_function function;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[SLOTS]; /* guarded by the lock */

enum kops_code here_image_check(uint64_t layout, struct kops_error *e)
{
    if (layout == CUDA_OPS_LAYOUT)
        return KOPS_OK;
    return fail(e, KOPS_ERR_UNSUPPORTED,
                "client and daemon are of different versions: the daemon's kernels take parameters of layout "
                "%" PRIx64 ", this client makes those of %" PRIx64 "; launch in the daemon, or install both from one "
                "release",
                layout, (uint64_t)CUDA_OPS_LAYOUT);
}

enum kops_code here_image_keep(const char *name, int fd, size_t size, struct kops_error *e)
{
    struct here_code *kept;

    for (unsigned i = 0; i < cuda_ops_binary_count; i++)
        if (strcmp(cuda_ops_binary_names[i], name) == 0)
            return here_code_keep(name, fd, size, &kept, e);
    return fail(e, KOPS_ERR_BAD_ARGUMENT, "the daemon's kernels have no binary %.64s", name);
}

/* Its name is NULL where there is none. */
static const struct cuda_ops_kernel *find_kernel(const char *symbol)
{
    const struct cuda_ops_kernel *k = cuda_ops_kernels;

    while (k->name && strcmp(k->name, symbol) != 0)
        k++;
    return k;
}

/* The name of the binary that holds the kernel. */
static const char *binary_of(const char *symbol)
{
    const struct cuda_ops_kernel *k = find_kernel(symbol);

    return k->name ? cuda_ops_binary_names[k->binary] : NULL;
}

enum cuda_ops_level here_image_level(const char *symbol)
{
    return find_kernel(symbol)->level;
}

/* Each kernel has a place of its own for a context; where two meet, the later one takes it. */
static struct slot *place(const char *symbol, cuda_context context)
{
    const uint64_t mixed = ((uint64_t)(uintptr_t)symbol ^ (uint64_t)(uintptr_t)context << 7) * 0x9e3779b97f4a7c15U;

    return &slots[mixed >> 56];
}

enum kops_code here_image_function(const struct cuda_driver *d, cuda_context context, const char *symbol,
                                   struct here_function *ret, const char **ret_missing, struct kops_error *e)
{
    struct slot *s = place(symbol, context);
    const char *name;
    struct here_code *code;
    enum kops_code r;
    bool found;

    *ret_missing = NULL;
    pthread_mutex_lock(&lock);
    found = s->symbol == symbol && s->context == context;
    *ret = s->function;
    pthread_mutex_unlock(&lock);
    if (found)
        return KOPS_OK;
    name = binary_of(symbol);
    if (!name)
        return fail(e, KOPS_ERR_INTERNAL, "no binary has the kernel %.128s", symbol);
    code = here_code_find(name);
    if (!code) {
        *ret_missing = name;
        return KOPS_OK;
    }
    r = here_code_function(code, d, context, symbol, ret, e);
    if (r)
        return r;
    pthread_mutex_lock(&lock);
    *s = (struct slot){.symbol = symbol, .context = context, .function = *ret};
    pthread_mutex_unlock(&lock);
    return KOPS_OK;
}
