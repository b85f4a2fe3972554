#include "team.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct team {
    pthread_barrier_t barrier;
    size_t members, bytes;
    _Alignas(128) char shared[];
};

struct team *team_new(size_t members, size_t shared_bytes)
{
    size_t bytes = sizeof(struct team) + shared_bytes;
    struct team *team = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;

    if (team == MAP_FAILED) {
        perror("bench: shared memory");
        return NULL;
    }
    team->members = members;
    team->bytes = bytes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&team->barrier, &attributes, (unsigned)members);
    pthread_barrierattr_destroy(&attributes);
    return team;
}

struct team *team_free(struct team *team)
{
    if (team)
        munmap(team, team->bytes);
    return NULL;
}

void *team_shared(struct team *team)
{
    return team->shared;
}

void team_meet(struct team *team)
{
    pthread_barrier_wait(&team->barrier);
}

static int status_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int wait_for_all(pid_t *members, size_t n)
{
    int r = 0;

    for (size_t left = n; left > 0;) {
        int status;
        pid_t ended = wait(&status);

        if (ended < 0 && errno == EINTR)
            continue;
        if (ended < 0)
            return 1;
        for (size_t i = 0; i < n; i++) {
            if (members[i] == ended) {
                members[i] = 0;
                left--;
            }
        }
        /* The others would wait for it for ever. */
        for (size_t i = 0; status && !r && i < n; i++) {
            if (members[i])
                kill(members[i], SIGKILL);
        }
        if (!r)
            r = status_of(status);
    }
    return r;
}

int team_run(struct team *team, int (*work)(struct team *team, size_t member, void *context), void *context)
{
    pid_t *members = calloc(team->members, sizeof(*members)), parent = getpid();
    int r = 1;

    if (!members)
        return r;
    fflush(NULL);
    for (size_t i = 0; i < team->members; i++) {
        members[i] = fork();
        if (members[i] < 0) {
            perror("bench: fork");
            for (size_t j = 0; j < i; j++)
                kill(members[j], SIGKILL);
            wait_for_all(members, i);
            goto free_members;
        }
        if (members[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            r = getppid() == parent ? work(team, i, context) : 1;
            fflush(NULL);
            _exit(r ? (r > 0 ? r : 1) : 0);
        }
    }
    r = wait_for_all(members, team->members);

free_members:
    free(members);
    return r;
}
