/* Owns the cuBLASLt library, a device's handle of it, and the cache of plans. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blaslt.h"
#include "plan.h"
#include "times/records.h"
#include "util/log.h"
#include "util/packages.h"

struct blaslt_api blaslt_api;

static struct blaslt_context_api in_context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *chosen_path;
static bool still_to_load;

/* Libraries of both versions have this interface. The loader's folders are searched first, then the toolkit's. */
static const char *const usual_names[] = {
    "libcublasLt.so.13", /* the bare names are searched in a Python package beside this program first */
    "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12", NULL,
};

static const struct cuda_symbol functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_api, Name), false},
    BLASLT_FUNCTIONS(X)
#undef X
};

static const struct cuda_symbol context_functions[] = {
#define X(Name) {"cublasLt" #Name, offsetof(struct blaslt_context_api, Name), false},
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

static int load_from(const char *path, char *why, size_t why_size)
{
    struct blaslt_api api = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    struct blaslt_context_api context_api;
    const char *missing;

    if (!api.library) {
        snprintf(why, why_size, "%s", dlerror());
        return -1;
    }
    missing = cuda_resolve(api.library, functions, sizeof(functions) / sizeof(functions[0]), &api);
    if (!missing)
        missing = cuda_resolve(api.library, context_functions, sizeof(context_functions) / sizeof(context_functions[0]),
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

static bool is_none(const char *path)
{
    return path && strcmp(path, "none") == 0;
}

static int load(const char *path, char *why, size_t why_size)
{
    char packaged[PATH_MAX];

    if (is_none(path)) {
        snprintf(why, why_size, "switched off");
        return -1;
    }
    if (path)
        return load_from(path, why, why_size);
    if (packages_find_library(usual_names, 2, packaged) && load_from(packaged, why, why_size) == 0)
        return 0;
    for (const char *const *name = usual_names; *name; name++)
        if (load_from(*name, why, why_size) == 0)
            return 0;
    return -1;
}

static bool load_chosen(void)
{
    char why[256], quoted[300];

    still_to_load = false;
    if (load(chosen_path, why, sizeof(why)) == 0)
        return true;
    log_debug("cublaslt_unavailable", "reason=%s", log_quote(quoted, sizeof(quoted), why, strlen(why)));
    return false;
}

bool blaslt_choose(const char *path, bool late)
{
    bool there;

    pthread_mutex_lock(&lock);
    blaslt_api.library = NULL;
    chosen_path = path;
    still_to_load = late && !is_none(path);
    there = still_to_load || load_chosen();
    pthread_mutex_unlock(&lock);
    return there;
}

/* Loads the library, if that is still to be done. Error: unsupported, there is none. Thread: any; may block. */
static int blaslt_ready(struct error *e)
{
    bool there;

    pthread_mutex_lock(&lock);
    there = still_to_load ? load_chosen() : blaslt_api.library != NULL;
    pthread_mutex_unlock(&lock);
    return there ? 0 : error_set(e, ERROR_UNSUPPORTED, "cuBLASLt cannot be loaded here; leave the variant out");
}

size_t blaslt_version(void)
{
    struct error ignored;

    return blaslt_ready(&ignored) == 0 ? blaslt_api.GetVersion() : 0;
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

/* ---- a device's handle and its plans: the least recently used plan goes first ---- */

enum { BUCKETS = 1024, PLANS_MAX = 2048 };

struct blaslt {
    struct cuda_device *device;
    uint64_t workspace_bytes;
    atomic_bool absent;
    pthread_mutex_t handle_lock;
    cublasLtHandle_t handle; /* made at the first plan */
    pthread_mutex_t lock;    /* guards the members below */
    struct blaslt_plan *buckets[BUCKETS];
    struct list recent; /* struct blaslt_plan, least recently used first */
    unsigned count;
};

struct blaslt *blaslt_new(struct cuda_device *d, uint64_t workspace_bytes)
{
    struct blaslt *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->device = d;
    b->workspace_bytes = workspace_bytes;
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

bool blaslt_is_absent(const struct blaslt *b)
{
    return atomic_load_explicit(&b->absent, memory_order_relaxed);
}

static int get_handle(struct blaslt *b, cublasLtHandle_t *ret_handle, struct error *e)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (blaslt_ready(e) < 0) {
        atomic_store(&b->absent, true);
        return -1;
    }
    pthread_mutex_lock(&b->handle_lock);
    if (!b->handle)
        status = blaslt_on(b->device)->Create(&b->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        *ret_handle = b->handle;
    pthread_mutex_unlock(&b->handle_lock);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : blaslt_fail(status, "cublasLtCreate", e);
}

/* ---- the cache ---- */

static struct blaslt_plan **bucket_of(struct blaslt *b, const struct blaslt_cached *problem)
{
    const unsigned char *bytes = (const unsigned char *)problem;
    uint64_t h = 0, word;

    _Static_assert(sizeof(*problem) % sizeof(word) == 0, "hashed as words");
    for (size_t i = 0; i < sizeof(*problem); i += sizeof(word)) {
        memcpy(&word, bytes + i, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15U;
        h ^= h >> 29;
    }
    return &b->buckets[h % BUCKETS];
}

static struct blaslt_plan *find(struct blaslt *b, const struct blaslt_cached *problem)
{
    struct blaslt_plan *p = *bucket_of(b, problem);

    while (p && memcmp(&p->cached, problem, sizeof(*problem)) != 0)
        p = p->next;
    return p;
}

/* Takes a reference for the caller; the plan becomes the most recently used. Under the lock. */
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
    struct blaslt_plan **at = bucket_of(b, &p->cached);

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    list_remove(&p->link);
    b->count--;
    blaslt_plan_unref(p);
}

/* Consumes the caller's reference. Returns the plan, now cached, or the equal plan that another thread cached before.
 * Under the lock. */
static struct blaslt_plan *insert(struct blaslt *b, struct blaslt_plan *p)
{
    struct blaslt_plan *other = find(b, &p->cached);
    struct blaslt_plan **bucket = bucket_of(b, &p->cached);

    if (other) {
        blaslt_plan_unref(p);
        return use(b, other);
    }
    if (b->count == PLANS_MAX)
        drop_oldest(b);
    p->next = *bucket;
    *bucket = p;
    list_append(&b->recent, &p->link);
    b->count++;
    return use(b, p);
}

static struct blaslt_cached cached_of(const struct blaslt_problem *problem, const struct tuning_choice *choice)
{
    return (struct blaslt_cached){*problem, choice && choice->has_algorithm ? tuning_hash(choice, sizeof(*choice)) : 0};
}

static int make(struct blaslt *b, const struct blaslt_cached *cached, const struct plan *plan,
                const uint64_t *addresses, const struct tuning_choice *choice, struct blaslt_plan **ret_plan,
                struct error *e)
{
    cublasLtHandle_t handle = NULL;
    struct blaslt_plan *p;
    int r;

    cuda_records_load_begin(false);
    r = get_handle(b, &handle, e);
    if (r == 0)
        r = blaslt_plan_make(b->device, handle, &cached->problem, b->workspace_bytes, cached->choice ? choice : NULL,
                             &p, e);
    if (r == 0 && p->has_algorithm)
        blaslt_plan_load(p, plan, addresses);
    cuda_records_load_end();
    if (r < 0)
        return -1;
    p->cached = *cached;
    pthread_mutex_lock(&b->lock);
    *ret_plan = insert(b, p);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

int blaslt_plan_get(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                    const struct tuning_choice *choice, struct blaslt_plan **ret_plan, struct error *e)
{
    struct blaslt_cached cached;
    struct blaslt_layout layout;
    struct blaslt_plan *p;

    if (blaslt_layout(plan, addresses, &layout, e) < 0)
        return -1;
    cached = cached_of(&layout.problem, choice);
    pthread_mutex_lock(&b->lock);
    p = find(b, &cached);
    if (p)
        use(b, p);
    pthread_mutex_unlock(&b->lock);
    if (!p && make(b, &cached, plan, addresses, choice, &p, e) < 0)
        return -1;
    if (!p->has_algorithm) {
        blaslt_plan_unref(p);
        return blaslt_fail(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", e);
    }
    *ret_plan = p;
    return 0;
}

bool blaslt_plan_is_cached(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                           const struct tuning_choice *choice)
{
    struct blaslt_cached cached;
    struct blaslt_layout layout;
    struct error ignored;
    bool found;

    if (blaslt_layout(plan, addresses, &layout, &ignored) < 0)
        return true;
    cached = cached_of(&layout.problem, choice);
    pthread_mutex_lock(&b->lock);
    found = find(b, &cached) != NULL;
    pthread_mutex_unlock(&b->lock);
    return found;
}

int blaslt_candidates(struct blaslt *b, const struct plan *plan, const uint64_t *addresses,
                      struct tuning_candidate *ret, unsigned max, unsigned *ret_n, struct error *e)
{
    cublasLtHandle_t handle = NULL;
    struct blaslt_layout layout;
    int r;

    if (blaslt_layout(plan, addresses, &layout, e) < 0)
        return -1;
    cuda_records_load_begin(false);
    r = get_handle(b, &handle, e);
    if (r == 0)
        r = blaslt_plan_candidates(b->device, handle, &layout.problem, b->workspace_bytes, ret, max, ret_n, e);
    cuda_records_load_end();
    return r;
}
