#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <kops/kops.h>

extern kops_client *client;
extern void *stream;
extern kops_kernel *scale;
extern kops_program *program;
extern struct kops_tensor a, b, x, y, out;
extern struct kops_result result;
extern struct kops_error error;
extern struct kops_request request;
extern struct kops_sequence sequence;
extern const char *text;
extern int n;

void block(void);
void block(void)
{
    /* the block */
}
