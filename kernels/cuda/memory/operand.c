/* Owns the registrations; finds operands' memory and addresses. */
#include "operand.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "mapping.h"
#include "util/list.h"
#include "util/log.h"

/* ---- registrations ---- */

struct registration {
    struct list link; /* in registrations */
    const struct backend_memory *memory;
    unsigned refs; /* attached devices */
    pthread_mutex_t lock;
    bool registered;       /* guarded by `lock` */
    CUdeviceptr on_device; /* the device's address if registered; equal on all devices (unified addressing) */
};

/* Guards the list, the references and every memory's `attached`. Registering is slow, so it holds the registration's
 * own lock instead. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list registrations = {&registrations, &registrations};

static struct registration *find(const struct backend_memory *memory)
{
    list_for_each_safe (node, after, &registrations) {
        struct registration *own = list_entry(node, struct registration, link);

        if (own->memory == memory)
            return own;
    }
    return NULL;
}

static struct registration *attach(struct cuda_device *d, struct backend_memory *memory, struct error *e)
{
    struct registration *own;

    pthread_mutex_lock(&lock);
    own = memory->attached[d->base.index];
    if (own)
        goto unlock;
    own = find(memory);
    if (!own) {
        own = calloc(1, sizeof(*own));
        if (!own) {
            error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a registration's record");
            goto unlock;
        }
        own->memory = memory;
        pthread_mutex_init(&own->lock, NULL);
        list_append(&registrations, &own->link);
    }
    own->refs++;
    memory->attached[d->base.index] = own;
unlock:
    pthread_mutex_unlock(&lock);
    return own;
}

/* Rounds up to pages; the mapping has all of its last page. */
static size_t whole_pages(uint64_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (size + page - 1) / page * page;
}

/* Under the lock. */
static int register_pages(struct cuda_device *d, struct registration *own, unsigned flags, struct error *e)
{
    const struct backend_memory *memory = own->memory;

    if (CUDA_CALL(d, e, MemHostRegister, memory->host, whole_pages(memory->size), flags) < 0)
        return -1;
    if (CUDA_CALL(d, e, MemHostGetDevicePointer, &own->on_device, memory->host, 0) < 0) {
        cuda_on(d)->MemHostUnregister(memory->host);
        return -1;
    }
    own->registered = true;
    return 0;
}

static int register_once(struct cuda_device *d, struct registration *own, bool *ret_registered, struct error *e)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    int r = 0;

    if (!own->memory->writable) {
        if (!d->registers_read_only) {
            *ret_registered = false;
            return 0;
        }
        flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    pthread_mutex_lock(&own->lock);
    if (!own->registered)
        r = register_pages(d, own, flags, e);
    *ret_registered = own->registered;
    pthread_mutex_unlock(&own->lock);
    return r;
}

int cuda_register(struct cuda_device *d, struct backend_memory *memory, struct cuda_registered *ret, struct error *e)
{
    struct registration *own = attach(d, memory, e);
    struct cuda_registered found = {0};

    if (!own)
        return -1;
    /* Read-only memory can be copied without a registration, a little slower. */
    if (register_once(d, own, &found.registered, e) < 0 && (memory->writable || cuda_device_is_broken(d)))
        return -1;
    found.on_device = found.registered ? own->on_device : 0;
    *ret = found;
    return 0;
}

bool cuda_is_registered(const struct cuda_device *d, const struct backend_memory *memory)
{
    struct registration *own;
    bool registered;

    pthread_mutex_lock(&lock);
    own = memory->attached[d->base.index];
    pthread_mutex_unlock(&lock);
    if (!own || pthread_mutex_trylock(&own->lock) != 0)
        return false;
    registered = own->registered;
    pthread_mutex_unlock(&own->lock);
    return registered;
}

/* Returns the address for kernels of a mapping that memory_attach() attached. */
static CUdeviceptr cuda_registered_address(const struct cuda_device *d, const struct backend_memory *memory)
{
    const struct registration *own = memory->attached[d->base.index];

    return own->on_device;
}

int cuda_memory_attach(struct backend_device *base, struct backend_memory *memory, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct cuda_registered found;

    if (cuda_enter(d, e) < 0 || cuda_register(d, memory, &found, e) < 0)
        return -1;
    if (!found.registered)
        return error_set(e, ERROR_UNSUPPORTED, "%s cannot use shared host memory", base->info.name);
    return 0;
}

/* A failure is logged and does not break the device; the addresses are never used again. */
static void unregister(struct cuda_device *d, struct backend_memory *memory)
{
    struct error ignored;
    CUresult r;

    memory->address_taken = true;
    if (cuda_enter(d, &ignored) < 0)
        return;
    r = cuda_on(d)->MemHostUnregister(memory->host);
    memory->address_taken = r != CUDA_SUCCESS && r != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (r != CUDA_SUCCESS)
        log_warning("unregister_failed", "device=%s bytes=%llu driver=%s", d->base.info.uuid,
                    (unsigned long long)memory->size, cuda_result_name(r));
}

void cuda_memory_detach(struct backend_device *base, struct backend_memory *memory)
{
    struct cuda_device *d = cuda_device(base);
    struct registration *own;

    pthread_mutex_lock(&lock);
    own = memory->attached[base->index];
    memory->attached[base->index] = NULL;
    if (own && --own->refs == 0)
        list_remove(&own->link);
    else
        own = NULL;
    pthread_mutex_unlock(&lock);
    if (!own)
        return;
    if (own->registered)
        unregister(d, memory);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

/* ---- operands ---- */

bool cuda_step_is_staged(const struct step *step)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (cuda_operand_is_staged(&step->operands[i]))
            return true;
    return false;
}

void cuda_step_addresses(const struct cuda_device *d, const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS])
{
    const unsigned operands = step_operands(step);

    for (unsigned i = 0; i < STEP_MAX_OPERANDS; i++) {
        struct backend_memory *memory = i < operands ? cuda_operand_memory(&step->operands[i]) : NULL;

        addresses[i] = memory ? cuda_peer_address(d, memory) + step->operands[i].offset : 0;
    }
}

void cuda_step_alignments(const struct step *step, uint64_t addresses[STEP_MAX_OPERANDS])
{
    const unsigned operands = step_operands(step);

    for (unsigned i = 0; i < operands; i++) {
        const struct backend_memory *memory = cuda_operand_memory(&step->operands[i]);

        addresses[i] = (memory ? memory->address : 0) + step->operands[i].offset;
    }
}

bool cuda_step_has_access(const struct cuda_device *d, const struct step *step)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (!cuda_peer_has_access(d, cuda_operand_memory(&step->operands[i])))
            return false;
    return true;
}

int cuda_step_allow(struct cuda_device *d, const struct step *step, struct error *e)
{
    for (unsigned i = 0; i < step_operands(step); i++)
        if (cuda_peer_allow(d, cuda_operand_memory(&step->operands[i]), e) < 0)
            return -1;
    return 0;
}

struct cuda_range cuda_operand_range(const struct step_operand *o)
{
    return (struct cuda_range){.memory = cuda_operand_memory(o), .start = o->offset, .end = o->offset + o->extent};
}

unsigned cuda_ranges_add(struct cuda_range *all, unsigned n, struct cuda_range added)
{
    for (unsigned i = 0; i < n;) {
        const struct cuda_range *r = &all[i];

        if (!cuda_ranges_overlap(r, &added)) {
            i++;
            continue;
        }
        added.start = r->start < added.start ? r->start : added.start;
        added.end = r->end > added.end ? r->end : added.end;
        added.flags |= r->flags;
        all[i] = all[--n];
        i = 0; /* start again, since the merged range may overlap others */
    }
    all[n++] = added;
    return n;
}

CUdeviceptr cuda_signal_address(const struct cuda_device *d, const struct backend_signal *signal)
{
    return cuda_registered_address(d, signal->page) + signal->offset;
}
