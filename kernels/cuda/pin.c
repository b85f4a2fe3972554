/* Owns the registrations of client memory. */
#include "pin.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "util/list.h"
#include "util/log.h"

struct cuda_pin {
    struct list link; /* in pins */
    const struct backend_memory *memory;
    unsigned refs; /* devices attached */
    pthread_mutex_t lock;
    bool registered;       /* under lock */
    CUdeviceptr on_device; /* set by memory_attach(), before anybody asks */
};

/* Guards the list, the references and every memory's `attached`; registering, which is slow, has the pin's own lock. */
static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list pins = {&pins, &pins};

static struct cuda_pin *find(const struct backend_memory *memory)
{
    list_for_each_safe (node, after, &pins) {
        struct cuda_pin *pin = list_entry(node, struct cuda_pin, link);

        if (pin->memory == memory)
            return pin;
    }
    return NULL;
}

static struct cuda_pin *attach(struct cuda_device *d, struct backend_memory *memory, struct error *e)
{
    struct cuda_pin *pin;

    pthread_mutex_lock(&pins_lock);
    pin = memory->attached[d->base.index];
    if (pin)
        goto unlock;
    pin = find(memory);
    if (!pin) {
        pin = calloc(1, sizeof(*pin));
        if (!pin) {
            error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a registration's record");
            goto unlock;
        }
        pin->memory = memory;
        pthread_mutex_init(&pin->lock, NULL);
        list_append(&pins, &pin->link);
    }
    pin->refs++;
    memory->attached[d->base.index] = pin;
unlock:
    pthread_mutex_unlock(&pins_lock);
    return pin;
}

/* Whole pages: the mapping's last page is there, whatever the buffer's size. */
static size_t whole_pages(uint64_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (size + page - 1) / page * page;
}

static int register_once(struct cuda_device *d, struct cuda_pin *pin, bool *ret_registered, struct error *e)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    const struct backend_memory *memory = pin->memory;
    int r = 0;

    if (!memory->writable) {
        if (!d->registers_read_only) {
            *ret_registered = false;
            return 0;
        }
        flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    pthread_mutex_lock(&pin->lock);
    if (!pin->registered) {
        r = CUDA_CALL(d, e, MemHostRegister, memory->host, whole_pages(memory->size), flags);
        pin->registered = r == 0;
    }
    *ret_registered = pin->registered;
    pthread_mutex_unlock(&pin->lock);
    return r;
}

int cuda_pin(struct cuda_device *d, struct backend_memory *memory, struct cuda_pin_view *ret_view, struct error *e)
{
    struct cuda_pin *pin = attach(d, memory, e);
    struct cuda_pin_view view = {0};

    if (!pin)
        return -1;
    /* What is only read can be copied without it, a little slower. */
    if (register_once(d, pin, &view.registered, e) < 0 && (memory->writable || cuda_device_is_broken(d)))
        return -1;
    if (view.registered && CUDA_CALL(d, e, MemHostGetDevicePointer, &view.on_device, memory->host, 0) < 0)
        return -1;
    *ret_view = view;
    return 0;
}

CUdeviceptr cuda_pin_address(const struct cuda_device *d, const struct backend_memory *memory)
{
    const struct cuda_pin *pin = memory->attached[d->base.index];

    return pin->on_device;
}

int cuda_memory_attach(struct backend_device *base, struct backend_memory *memory, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct cuda_pin_view view;
    struct cuda_pin *pin;

    if (cuda_enter(d, e) < 0 || cuda_pin(d, memory, &view, e) < 0)
        return -1;
    if (!view.registered)
        return error_set(e, ERROR_UNSUPPORTED, "%s cannot use shared host memory", base->info.name);
    pin = memory->attached[base->index];
    pin->on_device = view.on_device; /* unified addressing: the same on every device */
    return 0;
}

/* A failure breaks nothing that works: the device goes on, and the addresses are given up. */
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
    struct cuda_pin *pin;

    pthread_mutex_lock(&pins_lock);
    pin = memory->attached[base->index];
    memory->attached[base->index] = NULL;
    if (pin && --pin->refs == 0)
        list_remove(&pin->link);
    else
        pin = NULL;
    pthread_mutex_unlock(&pins_lock);
    if (!pin)
        return;
    if (pin->registered)
        unregister(d, memory);
    pthread_mutex_destroy(&pin->lock);
    free(pin);
}
