#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_driver driver;
static char load_failure[256]; /* empty: the driver is there */
static cuda_status init_status;
static atomic_bool usable; /* the driver is there and initialised */

static const char *driver_path(void)
{
    const char *given = getenv("KOPS_CUDA_DRIVER");

    return given && *given ? given : "libcuda.so.1";
}

static void load(void)
{
    const char *path = driver_path();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        snprintf(load_failure, sizeof(load_failure), "the CUDA driver cannot be loaded: %s", dlerror());
        return;
    }
    /* dlsym gives a data pointer where a function pointer is wanted; POSIX promises that the bytes agree. */
#define X(member, name, parameters)                                                                                    \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
                                                                                                                       \
        if (!symbol && !load_failure[0])                                                                               \
            snprintf(load_failure, sizeof(load_failure), "%s has no %s: the driver is too old", path, #name);          \
        memcpy(&driver.member, &symbol, sizeof(symbol));                                                               \
    }
    CUDA_CALLS(X)
#undef X
#define X(member, name, parameters)                                                                                    \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
                                                                                                                       \
        memcpy(&driver.member, &symbol, sizeof(symbol));                                                               \
    }
    CUDA_OPTIONAL_CALLS(X)
#undef X
    if (load_failure[0])
        return;
    init_status = driver.init(0);
    atomic_store_explicit(&usable, init_status == 0, memory_order_release);
}

const struct cuda_driver *cuda_loaded(void)
{
    return atomic_load_explicit(&usable, memory_order_acquire) ? &driver : NULL;
}

const struct cuda_driver *cuda_load(struct kops_error *e)
{
    cuda_status status;
    cuda_context unused;

    pthread_once(&once, load);
    if (load_failure[0]) {
        fail(e, KOPS_ERR_NO_CUDA, "%s", load_failure);
        return NULL;
    }
    if (init_status) {
        cuda_fail(&driver, e, KOPS_ERR_NO_CUDA, init_status, "cuInit");
        return NULL;
    }
    /* After a fork the driver answers "not initialised" for ever. */
    status = driver.context_get(&unused);
    if (status) {
        cuda_fail(&driver, e, KOPS_ERR_NO_CUDA, status,
                  status == CUDA_ERROR_NOT_INITIALIZED
                      ? "CUDA does not work in a child that was forked after CUDA was used: start a new process instead"
                      : "cuCtxGetCurrent");
        return NULL;
    }
    return &driver;
}

enum kops_code cuda_fail(const struct cuda_driver *d, struct kops_error *e, enum kops_code code, cuda_status status,
                         const char *what)
{
    const char *name = NULL;

    if (d->get_error_name(status, &name) || !name)
        name = "unknown error";
    fail(e, code, "%s: %s (%d)", what, name, status);
    return fail_text(e, code, "driver", name, strlen(name));
}

enum kops_code cuda_device_uuid(const struct cuda_driver *d, int ordinal, char ret_text[CUDA_UUID_TEXT],
                                struct kops_error *e)
{
    struct cuda_uuid u;
    cuda_device device;
    cuda_status status = d->device_get(&device, ordinal);
    size_t n = 0;

    if (!status)
        status = d->device_get_uuid(&u, device);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuDeviceGetUuid");
    n += (size_t)snprintf(ret_text, CUDA_UUID_TEXT, "GPU-");
    for (unsigned i = 0; i < sizeof(u.bytes); i++)
        n += (size_t)snprintf(ret_text + n, CUDA_UUID_TEXT - n,
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u.bytes[i]);
    return KOPS_OK;
}

enum kops_code cuda_find_device(const struct cuda_driver *d, const char *uuid, int *ret_ordinal, struct kops_error *e)
{
    char text[CUDA_UUID_TEXT];
    int count = 0;
    cuda_status status = d->device_get_count(&count);

    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuDeviceGetCount");
    for (int i = 0; i < count; i++) {
        enum kops_code r = cuda_device_uuid(d, i, text, e);

        if (r)
            return r;
        if (!strcmp(text, uuid)) {
            *ret_ordinal = i;
            return KOPS_OK;
        }
    }
    return fail(e, KOPS_ERR_NO_CUDA, "this process does not see the GPU %s: check CUDA_VISIBLE_DEVICES", uuid);
}

bool cuda_is_in_use(const char *uuid)
{
    void *library = dlopen(driver_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    cuda_status (*current)(cuda_context *) = NULL;
    const struct cuda_driver *d = NULL;
    struct kops_error unwanted;
    cuda_context unused;
    cuda_device device;
    unsigned flags;
    int ordinal, active = 0;
    void *symbol;

    if (!library)
        return false;
    symbol = dlsym(library, "cuCtxGetCurrent");
    memcpy(&current, &symbol, sizeof(symbol));
    if (current && current(&unused) == 0) /* else the driver was not initialised */
        d = cuda_load(&unwanted);
    if (!d || !d->primary_state || cuda_find_device(d, uuid, &ordinal, &unwanted) || d->device_get(&device, ordinal) ||
        d->primary_state(device, &flags, &active))
        active = 0;
    dlclose(library);
    return active;
}

enum kops_code cuda_push_primary(const struct cuda_driver *d, int ordinal, struct kops_error *e)
{
    cuda_device device;
    cuda_context context;
    cuda_status status = d->device_get(&device, ordinal);

    /* The primary context is never released: it is the process's own, and making it again costs a third of a second. */
    if (!status)
        status = d->primary_retain(&context, device);
    if (!status)
        status = d->context_push(context);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuDevicePrimaryCtxRetain");
    return KOPS_OK;
}

void cuda_pop(const struct cuda_driver *d)
{
    cuda_context unused;

    d->context_pop(&unused);
}
