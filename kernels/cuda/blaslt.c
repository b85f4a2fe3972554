/* Owns the cuBLASLt library, one handle per device, and the cache of plans: least recently used ones go first. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blaslt_api.h"
#include "device.h"

struct blaslt_api blaslt_api;

static struct blaslt_context_api in_context;

/* The versions whose interface this is, where the loader looks (LD_LIBRARY_PATH, the system's folders), then where the
 * toolkit lies. */
static const char *const usual_names[] = {
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "/usr/local/cuda/lib64/libcublasLt.so.13",
    "/usr/local/cuda/lib64/libcublasLt.so.12",
    NULL,
};

struct function {
    const char *symbol;
    size_t offset;
};

static const struct function functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_api, Name)},
    BLASLT_FUNCTIONS(X)
#undef X
};

static const struct function context_functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_context_api, Name)},
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

/* The symbol that the library does not have, or NULL. */
static const char *resolve(void *library, const struct function *wanted, size_t n, void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(library, wanted[i].symbol);

        if (!symbol)
            return wanted[i].symbol;
        memcpy((char *)table + wanted[i].offset, &symbol, sizeof(symbol));
    }
    return NULL;
}

static int load_from(const char *path, char *why, size_t why_size)
{
    struct blaslt_api api = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    struct blaslt_context_api context_api;
    const char *missing;

    if (!api.library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
    missing = resolve(api.library, functions, sizeof(functions) / sizeof(functions[0]), &api);
    if (!missing)
        missing = resolve(api.library, context_functions, sizeof(context_functions) / sizeof(context_functions[0]),
                          &context_api);
    if (missing) {
        snprintf(why, why_size, "%s has no %s", path, missing);
        dlclose(api.library);
        return -1;
    }
    blaslt_api = api;
    in_context = context_api;
    return 0;
}

const struct blaslt_context_api *blaslt_on(const struct cuda_device *d)
{
    cuda_on(d);
    return &in_context;
}

int blaslt_load(const char *path, char *why, size_t why_size)
{
    blaslt_api.library = NULL;
    if (path && strcmp(path, "none") == 0) {
        snprintf(why, why_size, "switched off");
        return -1;
    }
    if (path)
        return load_from(path, why, why_size);
    for (const char *const *name = usual_names; *name; name++)
        if (load_from(*name, why, why_size) == 0)
            return 0;
    return -1;
}

int blaslt_fail(cublasStatus_t status, const char *call, struct error *e)
{
    const char *name = blaslt_api.GetStatusName(status);

    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        error_set(e, ERROR_OUT_OF_MEMORY, "%s found too little memory", call);
    else if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
        error_set(e, ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for this product here; leave the variant out");
    else
        error_set(e, ERROR_DEVICE_ERROR, "%s failed with %s", call, name);
    return error_detail_text(e, "driver", name);
}

struct blaslt *blaslt_new(struct cuda_device *d)
{
    struct blaslt *b = blaslt_api.library ? calloc(1, sizeof(*b)) : NULL;

    if (!b)
        return NULL;
    b->device = d;
    pthread_mutex_init(&b->handle_lock, NULL);
    pthread_mutex_init(&b->lock, NULL);
    list_init(&b->recent);
    return b;
}

struct blaslt *blaslt_free(struct blaslt *b)
{
    if (!b)
        return NULL;
    list_for_each_safe (node, after, &b->recent) {
        blaslt_plan_unref(list_entry(node, struct blaslt_plan, link));
    }
    if (b->handle)
        blaslt_on(b->device)->Destroy(b->handle);
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->handle_lock);
    free(b);
    return NULL;
}

int blaslt_handle(struct blaslt *b, cublasLtHandle_t *ret_handle, struct error *e)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    pthread_mutex_lock(&b->handle_lock);
    if (!b->handle)
        status = blaslt_on(b->device)->Create(&b->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        *ret_handle = b->handle;
    pthread_mutex_unlock(&b->handle_lock);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : blaslt_fail(status, "cublasLtCreate", e);
}

/* ---- the cache ---- */

static struct blaslt_plan **bucket_of(struct blaslt *b, const struct blaslt_problem *problem)
{
    const unsigned char *bytes = (const unsigned char *)problem;
    uint64_t h = 0, word;

    _Static_assert(sizeof(*problem) % sizeof(word) == 0, "hashed as words");
    for (size_t i = 0; i < sizeof(*problem); i += sizeof(word)) {
        memcpy(&word, bytes + i, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15U;
        h ^= h >> 29;
    }
    return &b->buckets[h % BLASLT_BUCKETS];
}

/* The plan of that problem, or NULL. Under the lock. */
static struct blaslt_plan *find(struct blaslt *b, const struct blaslt_problem *problem)
{
    struct blaslt_plan *p = *bucket_of(b, problem);

    while (p && memcmp(&p->problem, problem, sizeof(*problem)) != 0)
        p = p->next;
    return p;
}

/* A reference for the caller; the plan becomes the most recently used. Under the lock. */
static struct blaslt_plan *use(struct blaslt *b, struct blaslt_plan *p)
{
    list_remove(&p->link);
    list_append(&b->recent, &p->link);
    atomic_fetch_add(&p->refs, 1);
    return p;
}

static void drop_oldest(struct blaslt *b)
{
    struct blaslt_plan *p = list_entry(list_first(&b->recent), struct blaslt_plan, link);
    struct blaslt_plan **at = bucket_of(b, &p->problem);

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    list_remove(&p->link);
    b->count--;
    blaslt_plan_unref(p);
}

/* Keeps the plan, whose reference it takes; if another thread was faster, that one's is used. Under the lock. */
static struct blaslt_plan *insert(struct blaslt *b, struct blaslt_plan *p)
{
    struct blaslt_plan *other = find(b, &p->problem);
    struct blaslt_plan **bucket = bucket_of(b, &p->problem);

    if (other) {
        blaslt_plan_unref(p);
        return use(b, other);
    }
    if (b->count == BLASLT_PLANS_MAX)
        drop_oldest(b);
    p->next = *bucket;
    *bucket = p;
    list_append(&b->recent, &p->link);
    b->count++;
    return use(b, p);
}

static int get(struct blaslt *b, const struct blaslt_problem *problem, struct blaslt_plan **ret_plan, struct error *e)
{
    struct blaslt_plan *p;

    pthread_mutex_lock(&b->lock);
    p = find(b, problem);
    if (p)
        use(b, p);
    pthread_mutex_unlock(&b->lock);
    if (!p) {
        if (blaslt_plan_make(b, problem, b->device->workspace_bytes, &p, e) < 0)
            return -1;
        pthread_mutex_lock(&b->lock);
        p = insert(b, p);
        pthread_mutex_unlock(&b->lock);
    }
    *ret_plan = p;
    return 0;
}

int blaslt_plan_get(struct cuda_device *d, const struct plan *plan, const uint64_t *addresses,
                    struct blaslt_plan **ret_plan, struct error *e)
{
    struct blaslt_layout layout;
    struct blaslt_plan *p;

    if (blaslt_layout(plan, addresses, &layout, e) < 0 || get(d->blaslt, &layout.problem, &p, e) < 0)
        return -1;
    if (p->n_candidates == 0) {
        blaslt_plan_unref(p);
        return blaslt_fail(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", e);
    }
    *ret_plan = p;
    return 0;
}

bool blaslt_plan_is_cached(struct cuda_device *d, const struct plan *plan, const uint64_t *addresses)
{
    struct blaslt_layout layout;
    struct error ignored;
    bool found;

    if (blaslt_layout(plan, addresses, &layout, &ignored) < 0)
        return true;
    pthread_mutex_lock(&d->blaslt->lock);
    found = find(d->blaslt, &layout.problem) != NULL;
    pthread_mutex_unlock(&d->blaslt->lock);
    return found;
}

int blaslt_check(const struct plan *plan, struct error *e)
{
    struct blaslt_layout layout;

    return blaslt_layout(plan, NULL, &layout, e);
}
