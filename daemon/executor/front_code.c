/* Users' objects in executors: their code, and the steps of programs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/error.h"

struct entry {
    uint32_t number; /* plan_kernel.function */
    char *lowered;   /* owned */
};

/* A binary of one domain, for every executor that the domain will have. */
struct front_code {
    struct front_object base; /* first */
    pthread_mutex_t lock;     /* guards the members below; held while an executor loads */
    uint64_t domain;
    const void *image; /* owned by the server */
    size_t size;
    struct entry *entries; /* owned */
    unsigned n_entries;
};

/* Code by the number of its function. Pool threads write it; the loop reads numbers that it was given before. */
static struct front_code *_Atomic functions[EXECUTOR_FUNCTIONS_MAX + 1];

static int in_memory(const unsigned char *bytes, size_t size, int *ret_fd, struct error *e)
{
    int fd = memfd_create("kopsd-code", MFD_CLOEXEC);
    size_t done = 0;

    if (fd < 0)
        return error_shortage(e, errno, "memfd_create");
    while (done < size) {
        ssize_t n = write(fd, bytes + done, size - done);

        if (n < 0 && errno != EINTR) {
            error_set(e, ERROR_OUT_OF_MEMORY, "handing a binary to an executor: %s", strerror(errno));
            close(fd);
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    *ret_fd = fd;
    return 0;
}

struct front_object *front_code_of(uint64_t function)
{
    return &atomic_load(&functions[function])->base;
}

static int load_function(struct front_code *c, const struct entry *entry, struct executor *x,
                         struct backend_function *ret, struct error *e)
{
    struct call_request request = {.kind = CALL_CODE_FUNCTION,
                                   .device = c->base.device->number,
                                   .code = c->base.handle,
                                   .handle = entry->number,
                                   .text_size = (uint32_t)strlen(entry->lowered) + 1};
    struct call_reply reply;

    if (front_call(x, &request, entry->lowered, NULL, &reply, NULL, e) < 0)
        return -1;
    *ret = reply.function;
    ret->id = entry->number;
    return 0;
}

/* Loads the code, with its lock held. */
static int load(struct front_code *c, struct executor *x, struct error *e)
{
    struct call_request request = {
        .kind = CALL_CODE_LOAD, .device = c->base.device->number, .code = c->base.handle, .size = c->size, .n_fds = 1};
    struct backend_function ignored;
    struct call_reply reply;
    int fd, r;

    if (front_is_present(&c->base, x))
        return 0;
    if (front_device_open(x, c->base.device->number, e) < 0 || in_memory(c->image, c->size, &fd, e) < 0)
        return -1;
    r = front_call(x, &request, NULL, &fd, &reply, NULL, e);
    close(fd);
    if (r < 0)
        return -1;
    atomic_fetch_or(&c->base.opened, 1ULL << x->bit);
    for (unsigned i = 0; i < c->n_entries; i++)
        if (load_function(c, &c->entries[i], x, &ignored, e) < 0)
            return -1;
    front_object_set_present(&c->base, x);
    return 0;
}

int front_code_open(struct front_object *o, struct executor *x, struct error *e)
{
    struct front_code *c = (struct front_code *)(void *)o;
    int r;

    pthread_mutex_lock(&c->lock);
    r = load(c, x, e);
    pthread_mutex_unlock(&c->lock);
    return r;
}

static void count_code(const struct front_code *c, int by)
{
    struct front *f = c->base.device->front;
    struct front_domain *d;

    pthread_mutex_lock(&f->lock);
    d = front_domain_get(f, c->domain);
    if (d)
        d->codes += (unsigned)by;
    pthread_mutex_unlock(&f->lock);
}

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e)
{
    struct front_code *c;

    if (device->info.exclusive && domain != DOMAIN_COMMON)
        return error_set(
            e, ERROR_UNSUPPORTED,
            "%s is in compute mode EXCLUSIVE_PROCESS, which leaves no room for an executor with kernels of "
            "users: set its compute mode to DEFAULT, or executors.isolate to none",
            device->info.uuid);
    c = front_object_new(sizeof(*c), FRONT_CODE, front_device(device), e);
    if (!c)
        return -1;
    pthread_mutex_init(&c->lock, NULL);
    c->domain = domain;
    c->image = binary;
    c->size = size;
    count_code(c, 1);
    *ret_code = (struct backend_code *)(void *)c;
    if (front_open_in(&c->base, domain, e) == 0)
        return 0;
    front_code_unload(device, *ret_code);
    return -1;
}

void front_code_unload(struct backend_device *device, struct backend_code *code)
{
    struct front_code *c = (struct front_code *)(void *)code;
    struct front *f = front_device(device)->front;

    count_code(c, -1);
    pthread_mutex_lock(&f->lock);
    for (unsigned i = 0; i < c->n_entries; i++) {
        atomic_store(&functions[c->entries[i].number], NULL);
        ids_give(&f->functions, c->entries[i].number);
        free(c->entries[i].lowered);
    }
    pthread_mutex_unlock(&f->lock);
    free(c->entries);
    front_object_close(&c->base);
    front_tell(f); /* the domain may be over */
}

static struct entry *new_entry(struct front_code *c, const char *lowered, struct error *e)
{
    struct front *f = c->base.device->front;
    struct entry *entries = realloc(c->entries, (c->n_entries + 1) * sizeof(*entries)), *entry;

    if (entries) {
        c->entries = entries;
        entry = &entries[c->n_entries];
        entry->lowered = strdup(lowered);
    }
    if (!entries || !entry->lowered) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a function's record");
        return NULL;
    }
    pthread_mutex_lock(&f->lock);
    entry->number = ids_take(&f->functions);
    pthread_mutex_unlock(&f->lock);
    if (entry->number)
        return entry;
    free(entry->lowered);
    error_set(e, ERROR_LIMIT_EXCEEDED, "executors have as many functions as they can");
    return NULL;
}

static int add_function(struct front_code *c, const char *lowered, struct executor *x,
                        struct backend_function *ret_function, struct error *e)
{
    struct entry *entry;
    int r = -1;

    pthread_mutex_lock(&c->lock);
    entry = load(c, x, e) == 0 ? new_entry(c, lowered, e) : NULL;
    if (entry)
        r = load_function(c, entry, x, ret_function, e);
    if (r == 0) {
        atomic_store(&functions[entry->number], c);
        c->n_entries++;
        atomic_store(&c->base.present, 1ULL << x->bit); /* another executor loads it with this entry */
    } else if (entry) {
        pthread_mutex_lock(&x->front->lock);
        ids_give(&x->front->functions, entry->number);
        pthread_mutex_unlock(&x->front->lock);
        free(entry->lowered);
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e)
{
    struct front_code *c = (struct front_code *)(void *)code;
    int r = -1;

    if (strlen(lowered) >= CALL_TEXT_MAX)
        return error_set(e, ERROR_LIMIT_EXCEEDED, "the entry's name has more than %d bytes", CALL_TEXT_MAX - 1);
    for (struct front_try t = {.front = front_device(device)->front, .key = c->domain}; front_try_next(&t, r, e);)
        r = add_function(c, lowered, t.x, ret_function, e);
    return r;
}

/* ---- programs: sequences whose steps an executor keeps, so that only their operands are sent again. Thread: loop ----
 */

struct front_program {
    struct list link; /* in front.programs */
    uint32_t number;
    uint64_t present; /* executors that have its steps, a bit each */
};

uint32_t front_program_of(const struct front_device *d, struct executor *x, const struct backend_job *job,
                          bool *ret_replay)
{
    struct front *f = d->front;
    struct front_program *p;

    *ret_replay = false;
    if (!job->program)
        return 0;
    p = (struct front_program *)(void *)*job->program;
    if (!p) {
        p = calloc(1, sizeof(*p));
        if (p)
            p->number = ids_take(&f->program_ids);
        if (!p || !p->number) {
            free(p);
            return 0;
        }
        list_append(&f->programs, &p->link);
        *job->program = (struct backend_program *)(void *)p;
    }
    *ret_replay = p->present >> x->bit & 1;
    return p->number;
}

void front_program_note(const struct backend_job *job, const struct executor *x)
{
    struct front_program *p = (struct front_program *)(void *)*job->program;

    p->present |= 1ULL << x->bit;
}

void front_program_free(struct backend_device *device, struct backend_program *program)
{
    struct front_program *p = (struct front_program *)(void *)program;
    struct front *f = front_device(device)->front;

    if (!p)
        return;
    for (unsigned i = 0; i < EXECUTORS_MAX; i++)
        if (p->present >> i & 1 && f->by_bit[i])
            front_send_number(f->by_bit[i], RECORD_PROGRAM_FREE, p->number, 0);
    list_remove(&p->link);
    ids_give(&f->program_ids, p->number);
    free(p);
}

void front_programs_forget(struct front *f, unsigned bit)
{
    list_each (struct front_program, p, link, &f->programs)
        p->present &= ~(1ULL << bit);
}
