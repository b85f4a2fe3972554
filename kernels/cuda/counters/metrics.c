#include "metrics.h"

#define OF_PEAK_ELAPSED ".avg.pct_of_peak_sustained_elapsed"
#define OF_PEAK_ACTIVE  ".avg.pct_of_peak_sustained_active"

static const struct cuda_metric metrics[METRICS_MAX] = {
    [COUNTER_DURATION] = {"gpu__time_duration.sum", 1e-3},
    [COUNTER_CYCLES] = {"sm__cycles_elapsed.max", 1},
    [COUNTER_SM] = {"sm__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_MEMORY] = {"gpu__compute_memory_throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_DRAM] = {"dram__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_L2] = {"lts__throughput" OF_PEAK_ELAPSED, 1},
    [COUNTER_L1] = {"l1tex__throughput" OF_PEAK_ACTIVE, 1},
    [COUNTER_L2_HIT] = {"lts__t_sector_hit_rate.pct", 1},
    [COUNTER_L1_HIT] = {"l1tex__t_sector_hit_rate.pct", 1},
    [COUNTER_DRAM_READ] = {"dram__bytes_read.sum", 1},
    [COUNTER_DRAM_WRITE] = {"dram__bytes_write.sum", 1},
    [COUNTER_TENSOR] = {"sm__pipe_tensor_cycles_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_ISSUE] = {"smsp__issue_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_OCCUPANCY] = {"sm__warps_active" OF_PEAK_ACTIVE, 1},
    [COUNTER_INSTRUCTIONS] = {"smsp__inst_executed.sum", 1},
    [COUNTER_BANK_CONFLICTS] = {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1},
    [COUNTER_SHARED_WAVEFRONTS] = {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1},
#define X(NAME, key, what)                                                                                             \
    [(int)COUNTER_COUNT + (int)STALL_##NAME] = {"smsp__average_warps_issue_stalled_" #key "_per_issue_active.ratio", 1},
    COUNTER_STALLS(X)
#undef X
};

const struct cuda_metric *cuda_metric(unsigned i)
{
    return &metrics[i];
}

double *cuda_metric_place(struct backend_counters *c, unsigned i)
{
    return i < COUNTER_COUNT ? &c->values[i] : &c->stalls[i - COUNTER_COUNT];
}
