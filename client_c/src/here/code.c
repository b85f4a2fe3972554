#include "code.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "ops/launch.h"
#include "ops/limits.h"
#include "proto/generated/cuda_ops_layout.h"
#include "rpc/value.h"

/* ---- tensors ---- */

int here_read_tensor(const struct native_tensor *from, const char *key, struct tensor *t, struct error *e)
{
    t->dtype = (enum dtype)from->dtype;
    t->rank = from->rank;
    t->offset = from->offset;
    if (from->rank > TENSOR_MAX_RANK)
        return error_at(e, ERROR_LIMIT_EXCEEDED, "", key, "more dimensions than limits.rank");
    memcpy(t->shape, from->shape, from->rank * sizeof(t->shape[0]));
    if (from->strides)
        memcpy(t->strides, from->strides, from->rank * sizeof(t->strides[0]));
    else
        tensor_set_contiguous(t);
    if (tensor_measure(t, key, e) < 0)
        return -1;
    return from->bytes ? tensor_check_bounds(t, from->offset + from->bytes, key, e) : 0;
}

bool here_one_memory(const void *context, unsigned a, unsigned b)
{
    (void)context;
    (void)a;
    (void)b;
    return true;
}

/* ---- the context ---- */

enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e)
{
    const struct cuda_driver *d = cuda_loaded();
    cuda_context context = NULL;

    if ((!d || d->context_get(&context)) && !(d = cuda_load(e))) /* cuda_load() says why, also after a fork */
        return KOPS_ERR_NO_CUDA;
    if (!context && (d->context_get(&context) || !context))
        return fail(e, KOPS_ERR_NO_CUDA,
                    "no CUDA context is current in this thread: a launch here runs in the caller's own; make one, or "
                    "launch in the daemon");
    *ret_driver = d;
    *ret_context = context;
    return KOPS_OK;
}

enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e)
{
    if (tensors < 0 || tensors == context)
        return KOPS_OK;
    return fail(e, KOPS_ERR_DEVICE_MISMATCH,
                "the tensors live on GPU %d, but the current context is of GPU %d: make that device current first",
                tensors, context);
}

/* ---- errors ---- */

/* Both enumerations come of proto/errors.json, with the same numbers. */
#define X(NAME, name, value)                                                                                           \
    _Static_assert((int)ERROR_##NAME == (int)KOPS_ERR_##NAME, "the codes of both sides have the same numbers");
KOPS_ERRORS(X)
#undef X

enum kops_code here_error(const struct error *from, struct kops_error *to)
{
    const enum kops_code code = (enum kops_code)from->code;

    fail(to, code, "%s", from->message);
    for (unsigned i = 0; i < from->n_details; i++) {
        const struct error_detail *d = &from->details[i];

        if (d->is_text)
            fail_text(to, code, d->key, d->text, strlen(d->text));
        else
            fail_number(to, code, d->key, d->number);
    }
    return code;
}

/* ---- binaries by their keys ---- */

enum {
    KEY_DIGITS = 64,
    /* CUfunction_attribute */
    FUNCTION_MAX_THREADS = 0,
    FUNCTION_SHARED_BYTES = 1,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
    FUNCTION_NON_PORTABLE_CLUSTERS = 14,
    /* CUresult */
    NO_BINARY_FOR_GPU = 209,
    NOT_FOUND = 500,
};

struct loaded {
    cuda_context context;
    cuda_module module;
    struct loaded *next;
};

struct here_code {
    char key[KEY_DIGITS + 1];
    const void *image; /* mapped */
    size_t size;
    struct loaded *loaded;
    struct here_code *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct here_code *codes; /* all binaries of the process; never dropped */

static struct here_code *find(const char *key)
{
    struct here_code *c = codes;

    while (c && strcmp(c->key, key) != 0)
        c = c->next;
    return c;
}

struct here_code *here_code_find(const char *key)
{
    struct here_code *c;

    pthread_mutex_lock(&lock);
    c = find(key);
    pthread_mutex_unlock(&lock);
    return c;
}

enum kops_code here_code_keep(const char *key, int fd, size_t size, struct here_code **ret, struct kops_error *e)
{
    struct here_code *made = calloc(1, sizeof(*made)), *found;

    if (!made)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a binary");
    made->image = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (made->image == MAP_FAILED) {
        free(made);
        return fail(e, KOPS_ERR_NO_MEMORY, "a binary of %zu bytes cannot be mapped", size);
    }
    made->size = size;
    strncpy(made->key, key, KEY_DIGITS);
    pthread_mutex_lock(&lock);
    found = find(made->key);
    if (!found) {
        made->next = codes;
        codes = found = made;
    }
    pthread_mutex_unlock(&lock);
    if (found != made) {
        munmap((void *)(uintptr_t)made->image, size);
        free(made);
    }
    *ret = found;
    return KOPS_OK;
}

/* ---- loading ---- */

static enum kops_code refuse(const struct cuda_driver *d, cuda_status status, struct kops_error *e)
{
    if (status == NO_BINARY_FOR_GPU)
        return fail(e, KOPS_ERR_UNSUPPORTED,
                    "the code is for another architecture than this context's GPU: compile it with that `arch`, or for "
                    "that device");
    return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuModuleLoadData");
}

/* Lock held. */
static enum kops_code load(struct here_code *c, const struct cuda_driver *d, cuda_context context,
                           cuda_module *ret_module, struct kops_error *e)
{
    struct loaded *l = c->loaded;
    cuda_status status;

    while (l && l->context != context)
        l = l->next;
    if (!l) {
        l = calloc(1, sizeof(*l));
        if (!l)
            return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a module");
        status = d->module_load(&l->module, c->image);
        if (status) {
            free(l);
            return refuse(d, status, e);
        }
        l->context = context;
        l->next = c->loaded;
        c->loaded = l;
    }
    *ret_module = l->module;
    return KOPS_OK;
}

struct device {
    const struct cuda_driver *driver;
    cuda_device device;
};

static int attribute(const void *device, int which)
{
    const struct device *on = device;
    int value = 0;

    return on->driver->device_attribute(&value, which, on->device) ? 0 : value;
}

/* Reads the function's limits, and allows launches to use all shared memory of the device. */
static cuda_status describe(const struct cuda_driver *d, struct here_function *f)
{
    struct device on = {.driver = d};
    cuda_status status = d->context_device(&on.device);
    int threads = 0, shared = 0;

    if (!status)
        status = d->function_get(&threads, FUNCTION_MAX_THREADS, f->function);
    if (!status)
        status = d->function_get(&shared, FUNCTION_SHARED_BYTES, f->function);
    if (status)
        return status;
    f->device = on.device;
    if (cuda_device_uuid(d, on.device, f->uuid, NULL))
        f->uuid[0] = '\0';
    cuda_limits_of(attribute, &on,
                   (struct cuda_limits_driver){.attributes = d->launch_ex,
                                               .maps = d->map_encode,
                                               .occupancy = d->occupancy_blocks && d->occupancy_clusters},
                   &f->limits);
    f->limits.function_threads = threads > 0 ? (unsigned)threads : 0;
    f->limits.static_shared = shared > 0 ? (unsigned)shared : 0;
    if (f->limits.static_shared < f->limits.max_shared)
        status = d->function_set(f->function, FUNCTION_MAX_DYNAMIC_SHARED,
                                 (int)(f->limits.max_shared - f->limits.static_shared));
    if (!status && f->limits.max_cluster > CLUSTER_PORTABLE)
        status = d->function_set(f->function, FUNCTION_NON_PORTABLE_CLUSTERS, 1);
    return status;
}

static enum kops_code find_function(struct here_code *c, const struct cuda_driver *d, cuda_context context,
                                    const char *symbol, struct here_function *f, struct kops_error *e)
{
    cuda_module module = NULL;
    cuda_status status;
    enum kops_code r = load(c, d, context, &module, e);

    if (r)
        return r;
    status = d->module_function(&f->function, module, symbol);
    if (status == NOT_FOUND)
        return fail(e, KOPS_ERR_UNSUPPORTED, "the code has no kernel %.128s for this GPU", symbol);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuModuleGetFunction");
    /* Load now, even where the environment asks for lazy loading: a capture must not meet the load. */
    if (d->function_load && (status = d->function_load(f->function)))
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuFuncLoad");
    status = describe(d, f);
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuFuncSetAttribute") : KOPS_OK;
}

enum kops_code here_code_function(struct here_code *code, const struct cuda_driver *d, cuda_context context,
                                  const char *symbol, struct here_function *ret, struct kops_error *e)
{
    int mode = CUDA_CAPTURE_RELAXED;
    enum kops_code r;

    cuda_exchange_capture_mode(d, &mode);
    ret->context = context;
    pthread_mutex_lock(&lock);
    r = find_function(code, d, context, symbol, ret, e);
    pthread_mutex_unlock(&lock);
    cuda_exchange_capture_mode(d, &mode);
    return r;
}

/* ---- the daemon's own kernels ---- */

enum { SLOTS = 256 /* a power of two, above the number of kernels */ };

/* A function that was found before. */
struct slot {
    const char *symbol;
    cuda_context context;
    struct here_function function;
};

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[SLOTS]; /* guarded by slots_lock */

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

/* Returns the kernel with that symbol, or the last entry, whose name is NULL. */
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

/* Returns the kernel's slot for a context. Where two kernels share a slot, the later one takes it. */
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
    pthread_mutex_lock(&slots_lock);
    found = s->symbol == symbol && s->context == context;
    *ret = s->function;
    pthread_mutex_unlock(&slots_lock);
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
    pthread_mutex_lock(&slots_lock);
    *s = (struct slot){.symbol = symbol, .context = context, .function = *ret};
    pthread_mutex_unlock(&slots_lock);
    return KOPS_OK;
}
