#include "result.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"

double result_kernel_us(const struct kops_result *result)
{
    return isnan(result->gpu_us) ? result->host_us : result->gpu_us;
}

void result_shape(const struct kops_tensor *t, char *into, size_t size)
{
    size_t n = 0;

    snprintf(into, size, "scalar");
    for (unsigned d = 0; d < t->rank && n < size; d++)
        n += (size_t)snprintf(into + n, size - n, "%s%lld", d ? "x" : "", (long long)t->shape[d]);
}

void result_print_more(const struct kops_result *result)
{
    if (!isnan(result->median_us))
        printf("%zu executions: min %.1f, median %.1f, p90 %.1f, max %.1f us\n", result->n_samples, result->min_us,
               result->median_us, result->p90_us, result->max_us);
    if (!isnan(result->h2d_us) || !isnan(result->d2h_us))
        printf("copies: to the device %.1f, back %.1f us\n", result->h2d_us, result->d2h_us);
}

void result_json_timings(const struct kops_result *result, const double *samples, size_t room)
{
    json_begin("timings", '{');
    json_number("send_us", result->send_us);
    json_number("recv_to_start_us", result->recv_to_start_us);
    json_number("map_us", result->map_us);
    json_number("queue_us", result->queue_us);
    json_number("wait_us", result->wait_us);
    json_number("h2d_us", result->h2d_us);
    json_number("d2h_us", result->d2h_us);
    json_number("gpu_us", result->gpu_us);
    json_number("host_us", result->host_us);
    json_number("end_us", result->end_us);
    json_number("total_us", result->total_us);
    json_number("wall_us", result->wall_us);
    json_number("reply_us", result->reply_us);
    json_number("min", result->min_us);
    json_number("median", result->median_us);
    json_number("p90", result->p90_us);
    json_number("max", result->max_us);
    if (result->n_samples) {
        json_begin("samples", '[');
        for (size_t i = 0; i < result->n_samples && i < room; i++)
            json_number(NULL, samples[i]);
        json_end(']');
    }
    json_end('}');
}
