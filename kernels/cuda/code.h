/* Code of users: an image loaded on one device, and the functions in it. Owned by the server, which keeps it while
 * anything may launch it. Thread: any. */
#ifndef KOPS_CUDA_CODE_H
#define KOPS_CUDA_CODE_H

#include "backend/backend.h"

struct cuda_device;
struct cuda_work;
struct cuda_stream;

/* What every launch of a user's kernel is called. */
extern const char cuda_variant_user[];

/* The vtable's functions. */
int cuda_code_load(struct backend_device *base, const void *image, size_t size, struct backend_code **ret_code,
                   struct error *e);
void cuda_code_unload(struct backend_device *base, struct backend_code *code);
int cuda_code_function(struct backend_device *base, struct backend_code *code, const char *lowered,
                       struct backend_function *ret_function, struct error *e);
void cuda_kernel_limits(struct backend_device *base, struct kernel_limits *ret_limits);

/* Asks the driver, once for each device. */
void cuda_code_find_limits(struct cuda_device *d);

/* What only the backend knows about a launch. Error: unsupported. */
int cuda_code_check(struct cuda_device *d, const struct plan *plan, struct error *e);

/* Fills the work's launch from its plan and addresses. */
void cuda_code_prepare(struct cuda_work *work);
/* Enqueues it. Thread: loop. */
int cuda_code_issue(struct cuda_stream *stream, struct cuda_work *work, struct error *e);

#endif
