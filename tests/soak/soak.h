/* A client that works at random, and what came of it. */
#ifndef SOAK_H
#define SOAK_H

#include <kops/kernel.h>

#include "expect.h"
#include "work.h"

enum {
    PIPELINE = 16,
    CODES = 128,
    WITNESS = 1000 /* elements of each of its tensors */
};

struct soak {
    const char *socket;
    kops_client *client;
    struct random random;
    struct memory memory;
    struct work work[PIPELINE];
    kops_buffer *witness; /* kept for all of the time, over every restart: a, b, and what a program needs */
    struct kops_tensor kept[4];
    kops_program *program; /* NULL: none now */
    kops_kernel *kernel;   /* the same */
    int kernels, forks, threads, streams;
    double think_s;        /* the longest pause between bursts of work; 0: none */
    int timeout_s;         /* of each call */
    struct stream *stream; /* NULL: no CUDA stream of its own */

    struct expect since;     /* the begin of the turn, or of a call */
    struct expect connected; /* when the daemon was asked for this connection last, */
    uint64_t known;          /* which had sent it so many requests */
    bool asks;               /* at the turn's end: work was lost */

    bool spoiled; /* its daemon hung up and may still write: what comes next uses other buffers */
    uint64_t requests, checked, wrong, lost, errors[CODES];
    double longest_us; /* of a turn in which nothing was lost */
};

/* turns.c */
double now_us(void);
double kept_value(unsigned tensor, unsigned i); /* element i of the witness's first two tensors */
double kept_sum(unsigned i);                    /* of both */
void check_kept(struct soak *s);
/* Complains where a vector of WITNESS elements is not what it is to be. */
void check_vector(struct soak *s, const struct kops_tensor *t, double (*right)(unsigned i), const char *what);
float *vector_data(const struct kops_tensor *t);
/* Room for such a vector. False: there is none, or an error. */
bool take_vector(struct soak *s, struct kops_tensor *ret);
void turn(struct soak *s); /* some work */

/* outcomes.c */
bool explained(enum kops_code code); /* a daemon that ends, or one at its limits, may answer this */
void complain(struct soak *s, const char *what, const char *why);
/* An error of a call that promises something (enum expect_kind), since `s->since`. */
void count_failure(struct soak *s, unsigned promise, const char *what, const struct kops_error *e);
void refuse_memory(struct soak *s, const struct kops_error *e);
/* A call that went well leaves no error. */
void check_error(struct soak *s, const struct kops_error *e);

/* repeats.c */
void repeats_turn(struct soak *s); /* calls that are made again when others end, or may not be */
void check_connection(struct soak *s);

/* soak_client.c */
void soak_begin(struct soak *s); /* connects to `s->socket` */
void soak_end(struct soak *s);

/* think.c */
void check_times(struct soak *s, const struct kops_result *r, double begin_us); /* of a call that began then */
void think(struct soak *s);                                                     /* some pause, or none */

/* leave.c */
void leave_turn(struct soak *s); /* somebody ends with work under way */

/* stream.c */
void stream_begin(struct soak *s);
void stream_turn(struct soak *s);
void stream_end(struct soak *s);

#endif
