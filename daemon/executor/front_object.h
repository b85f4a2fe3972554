/* Objects: what the daemon has under a number and executors open when they need it: memory and code. */
#ifndef KOPS_EXECUTOR_FRONT_OBJECT_H
#define KOPS_EXECUTOR_FRONT_OBJECT_H

#include "executor/front_executor.h"

enum front_kind { FRONT_MEMORY, FRONT_HOST, FRONT_CODE };

struct front_object {
    struct list link; /* in front.objects, under front.lock */
    enum front_kind kind;
    uint32_t handle;
    atomic_ullong present; /* executors that have all of it, a bit each */
    atomic_ullong opened;  /* executors that may have some of it, and must close it */
    uint64_t opening;      /* under front.lock: executors in which a thread opens it */
    atomic_uint closing;   /* closes that go on, and one for the owner */
    struct front_device *device;
};

static inline bool front_is_present(const struct front_object *o, const struct executor *x)
{
    return atomic_load_explicit(&o->present, memory_order_acquire) >> x->bit & 1;
}

/* ---- front_memory.c. Thread: any ---- */

/* A new struct of `size` bytes, which an object begins; the caller's until front_object_close(). NULL: *e. */
void *front_object_new(size_t size, enum front_kind kind, struct front_device *device, struct error *e);
void front_object_set_present(struct front_object *o, const struct executor *x);
/* Takes it off the list, closes it in every executor that has it, and frees the struct. In the common executor it is
 * closed before this returns; keepers close it in the others. Thread: pool. */
void front_object_close(struct front_object *o);
/* The executor with that bit is gone. Thread: loop. */
void front_objects_forget(struct front *f, unsigned bit);
/* Opens an object in the domain's executor, or, where that is lost, in the next one. Thread: pool. */
int front_open_in(struct front_object *o, uint64_t domain, struct error *e);

int front_memory_import(struct backend_device *device, const struct backend_import *import,
                        struct backend_memory **ret_memory, struct error *e);
int front_memory_alloc(struct backend_device *device, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                       struct error *e);
void front_memory_close(struct backend_memory *memory);
int front_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                        struct error *e);
int front_memory_attach(struct backend_device *device, struct backend_memory *memory, struct error *e);
void front_memory_detach(struct backend_device *device, struct backend_memory *memory);
int front_memory_free(struct backend_device *device, uint64_t *ret_bytes);

/* The number under which executors have the memory; 0: none. */
uint32_t front_handle(const struct front_device *d, struct backend_memory *memory);
/* Whether the executor has all that the job needs. Thread: loop. */
bool front_has_all(const struct front_device *d, const struct backend_job *job, const struct executor *x);
/* Opens there all that the job needs. Thread: keeper. */
int front_open_all(struct front_device *d, const struct backend_job *job, struct executor *x, struct error *e);

/* ---- front_code.c. Thread: any ---- */

int front_code_load(struct backend_device *device, uint64_t domain, const void *binary, size_t size,
                    struct backend_code **ret_code, struct error *e);
void front_code_unload(struct backend_device *device, struct backend_code *code);
int front_code_function(struct backend_device *device, struct backend_code *code, const char *lowered,
                        struct backend_function *ret_function, struct error *e);
/* Loads the code in an executor where it is not loaded yet. Thread: keeper or pool. */
int front_code_open(struct front_object *o, struct executor *x, struct error *e);
/* The code of a step's function, while a job that launches it is not done. */
struct front_object *front_code_of(uint64_t function);

/* ---- programs, in front_code.c. Thread: loop ---- */

/* The number of the job's program; *ret_replay: the executor has its steps. 0: the job is no program, or has no number
 * left and runs as a sequence. */
uint32_t front_program_of(const struct front_device *d, struct executor *x, const struct backend_job *job,
                          bool *ret_replay);
/* The executor has the steps of the job's program from now on. */
void front_program_note(const struct backend_job *job, const struct executor *x);
void front_program_free(struct backend_device *device, struct backend_program *program);
/* An executor with that bit is gone. */
void front_programs_forget(struct front *f, unsigned bit);

#endif
