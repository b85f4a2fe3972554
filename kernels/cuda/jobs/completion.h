/* Completion: seeing executions end, and taking ended jobs off their streams. Thread: loop; the context is current. */
#ifndef KOPS_CUDA_COMPLETION_H
#define KOPS_CUDA_COMPLETION_H

#include "executor.h"

/* The kind of an execution's end. Events that a thread can sleep on cost each call 0.5 to 1 us more than plain ones
 * (H200): where a flag tells of the end, such an event is recorded only before a thread sleeps. */
static inline enum cuda_event_kind cuda_end_kind(const struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->by_events)
        return EVENT_PLAIN_END;
    return s->flag ? EVENT_TIMED : EVENT_TIMED_END;
}

/* How a thread can wait for the stream's next completion. */
enum cuda_wait { WAIT_NOTHING /* there is something to do now */, WAIT_EVENT, WAIT_FLAG };
enum cuda_wait cuda_stream_waits_for(struct cuda_stream *s, CUevent *ret_event);

/* Appends the jobs at the stream's head that have ended to `finished`. */
void cuda_stream_finish(struct cuda_stream *s, struct list *finished);

/* The device is lost: appends all jobs of the stream to `finished`. Those that had ended before are done, as far as
 * flags and events still tell; the others fail. */
void cuda_stream_fail(struct cuda_stream *s, struct list *finished);

/* Marks the device broken when the driver says that the stream's context is, or when a kernel has written to the
 * stream's flag, so that the end of its work would never be seen. */
void cuda_stream_check(struct cuda_stream *s);

#endif
