/* Processor time within the daemon: the event loop, which serves every client, comes before threads that compute for
 * one client or may be busy for long. On an idle machine this changes nothing. */
#ifndef KOPS_UTIL_PRIORITY_H
#define KOPS_UTIL_PRIORITY_H

/* Makes the calling thread, and the threads and processes that it starts from then on, five steps nicer than the
 * process's first thread, which is the loop's: about a third of its weight. Not for the first thread, which could not
 * undo it. */
void priority_lower(void);

#endif
