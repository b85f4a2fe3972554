/* Owns a device's handle and the cache of plans: the least recently used plan goes first. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "times/records.h"

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
