/* Pages that vanish under a job: it fails, its neighbours and later jobs do not, and a fault elsewhere still ends the
 * process. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "tests/unit/memory_id_of.h"

enum { EDGE = 300, PAGE_BYTES = 4096 };

/* Shared memory that the test can cut. */
struct shared {
    struct backend_memory memory;
    int fd;
};

static void cut_off(void *shared)
{
    struct shared *s = shared;

    munmap(s->memory.host, s->memory.size);
    close(s->fd);
    free(s);
}

static struct shared *shared_new(size_t size)
{
    struct shared *s = opened(malloc(sizeof(*s)), cut_off);

    s->fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(s->fd >= 0);
    assert_int_equal(ftruncate(s->fd, (off_t)size), 0);
    s->memory = (struct backend_memory){.kind = MEMORY_MEMFD, .size = size, .writable = true};
    s->memory.host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_true(s->memory.host != MAP_FAILED);
    return s;
}

/* Three square f32 matrices in shared memory and a job on them. */
struct work {
    struct shared *memories[3];
    struct operand operands[3];
    struct backend_job job;
};

static void work_init(struct work *w, enum op_id op, const char *variant)
{
    const int64_t shape[] = {EDGE, EDGE};

    for (unsigned i = 0; i < 3; i++) {
        operand_init(&w->operands[i], DTYPE_F32, 2, shape, CONTIGUOUS);
        w->memories[i] = shared_new(w->operands[i].memory.size);
        memcpy(w->memories[i]->memory.host, w->operands[i].memory.host, w->operands[i].memory.size);
    }
    job_init(&w->job, op, (struct operand *[]){&w->operands[0], &w->operands[1]}, &w->operands[2], NULL);
    for (unsigned i = 0; i < 3; i++)
        w->job.steps->operands[i].memory = memory_id_of(&w->memories[i]->memory);
    step_copy_variant(w->job.steps->variant, variant);
}

static void resubmit(struct fixture *f, struct backend_job *job)
{
    job->impl = NULL;
    job_run(f, job);
}

static void assert_faulted(const struct backend_job *job)
{
    assert_true(job->failed);
    assert_int_equal(job->error.code, ERROR_MEMORY_FAULT);
}

/* Every worker goes on; the memory that was cut stays unusable rather than being silently replaced. */
static void check_fault(struct fixture *f, enum op_id op, const char *variant, unsigned cut, off_t keep)
{
    const unsigned open = opened_so_far();
    struct work broken, whole;

    work_init(&broken, op, variant);
    work_init(&whole, op, variant);
    assert_int_equal(ftruncate(broken.memories[cut]->fd, keep), 0);
    for (unsigned i = 0; i < 2; i++) {
        resubmit(f, &broken.job);
        assert_faulted(&broken.job);
        resubmit(f, &whole.job);
        assert_false(whole.job.failed);
    }
    close_since(open);
}

OPENING_TEST(test_every_kernel)
{
    static const enum op_id ops[] = {OP_ADD, OP_GEMM};
    struct fixture f = fixture_open(&(struct backend_config){.host_threads = 4});

    for (unsigned i = 0; i < COUNT(ops); i++)
        for (const char *const *v = host_backend.variants(f.device, op_get(ops[i]), DTYPE_F32); *v; v++)
            for (unsigned cut = 0; cut < 6; cut++)
                check_fault(&f, ops[i], *v, cut % 3, cut < 3 ? 0 : PAGE_BYTES * 40);
}

/* On the loop thread, where tiny jobs run. */
OPENING_TEST(test_tiny_job)
{
    const int64_t shape[] = {10};
    struct operand o;
    struct shared *s = shared_new(PAGE_BYTES);
    struct backend_job job;
    struct fixture f = fixture_open(NULL);

    operand_init(&o, DTYPE_F32, 1, shape, CONTIGUOUS);
    job_init(&job, OP_ADD, (struct operand *[]){&o, &o}, &o, NULL);
    job.steps->operands[2].memory = memory_id_of(&s->memory);
    job_run(&f, &job);
    assert_false(job.failed);
    assert_int_equal(ftruncate(s->fd, 0), 0);
    resubmit(&f, &job);
    assert_faulted(&job);
}

/* While it runs, whenever that may be. */
OPENING_TEST(test_cut_while_running)
{
    struct work w;
    struct fixture f = fixture_open(NULL);

    work_init(&w, OP_ADD, NULL);
    w.job.repeat = 1000000000;
    w.job.timing = false;
    host_backend.submit(f.stream, &w.job);
    assert_int_equal(ftruncate(w.memories[1]->fd, 0), 0);
    fixture_wait(&f, &w.job);
    assert_faulted(&w.job);
}

/* Two streams on the same broken memory, one after the other having patched it, both fail. */
OPENING_TEST(test_shared_by_streams)
{
    struct work first, second;
    struct backend_stream *other;
    struct fixture f;

    for (unsigned round = 0; round < 20; round++) {
        f = fixture_open(NULL);
        other = stream_open(&f);
        work_init(&first, OP_ADD, NULL);
        work_init(&second, OP_ADD, NULL);
        second.job.steps->operands[0] = first.job.steps->operands[0];
        second.job.steps->plan.elementwise.count = second.job.steps->plan.elementwise.shape[0] =
            5000; /* for a worker, not the loop thread */
        assert_int_equal(ftruncate(first.memories[0]->fd, 0), 0);
        first.job.repeat = second.job.repeat = 50;
        first.job.timing = second.job.timing = false;
        host_backend.submit(f.stream, &first.job);
        host_backend.submit(other, &second.job);
        fixture_wait(&f, NULL);
        assert_faulted(&first.job);
        assert_faulted(&second.job);
        close_opened(NULL);
    }
}

OPENING_TEST(test_fault_elsewhere)
{
    struct shared *s = shared_new(PAGE_BYTES);
    int status;
    pid_t child;

    signal(SIGBUS, SIG_DFL);
    fixture_open(NULL); /* the guard is installed over that */
    assert_int_equal(ftruncate(s->fd, 0), 0);
    child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        _exit(*(volatile unsigned char *)s->memory.host);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    /* A sanitizer's own handler, which was there before, exits instead. */
    assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
}
