import os

import ray

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init(num_cpus=2, num_gpus=0, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
